"""Pipeline over the pieces of a message, in three phases of which the middle one overlaps with the other two.

pipeline = Pipeline("process set 0")
pipeline.run_pieces(8, reduce_inside, reduce_across, gather_inside)
pipeline.close()
"""

# Threads. The caller runs ``before`` and ``after``; a thread of the pipeline, started for the first long message, runs
# ``across``. They share only ``_jobs``, a queue to the thread, and the future of each piece, the way back, so there is
# no lock. ``_pending`` and ``_thread`` belong to the caller (an engine has one at a time). The thread processes pieces
# in order, so they are sent in the same order on all members, and the last future completes last. The engine that
# ``across`` uses also has one user at a time: while a piece is pending, only this thread calls it.
#
# Memory is the reason for ``drain``: an error in a phase must not reach the caller of a collective while a piece of its
# array may still be written to. It waits without a time limit: its caller aborts the engines before (``_fail``).

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias, final

Phase: TypeAlias = Callable[[int], object]
_Job: TypeAlias = Callable[[], None]

IN_FLIGHT = 3
"""Pieces in the middle phase or its queue. Two keep the network busy; the third lets neighbours get out of step."""


@final
class Pipeline:
    """Thread of the middle phase, which lives from the first long message until ``close`` or garbage collection."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: deque[Future[None]] = deque()
        self._thread: threading.Thread | None = None

    def run_pieces(self, pieces: int, before: Phase, across: Phase | None, after: Phase) -> None:
        """Call each phase with 0, 1, ... ``pieces`` - 1, in this order; piece k may use memory that k - IN_FLIGHT used.

        ``across`` runs on a thread of its own while this thread runs ``before`` for the next pieces and ``after`` for
        earlier ones; a single piece runs here. Raises the error of any phase; ``drain`` then waits for pending pieces.
        """
        if pieces == 1:
            before(0)
            if across is not None:
                across(0)
            after(0)
            return
        for piece in range(pieces + IN_FLIGHT):
            done = piece - IN_FLIGHT
            if done >= 0:
                if across is not None:
                    self._pending[0].result()  # raises the error of the other thread
                    self._pending.popleft()  # not before: after an interrupt `drain` must still wait for it
                after(done)
            if piece < pieces:
                before(piece)
                if across is not None:
                    self._submit(across, piece)

    @property
    def is_busy(self) -> bool:
        """True while a piece is in the middle phase."""
        return bool(self._pending)

    def drain(self) -> None:
        """Wait until no piece is in the middle phase, whatever the result."""
        if self._thread is not None:
            # A last job in the queue. Not the futures: a signal handler's exception may have been raised between the
            # creation of a future and its job, and that future would never complete.
            reached = threading.Event()
            self._jobs.put(reached.set)
            reached.wait()
        self._pending.clear()

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)  # also without a thread: no job is submitted after this
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _submit(self, across: Phase, piece: int) -> None:
        if self._thread is None:
            # It gets only the queue: a reference to this object would keep it alive, and the thread would never end.
            # A daemon, because it may be in an engine that was not aborted when the process exits.
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=f"farandole across {self._label}", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        future: Future[None] = Future()
        self._pending.append(future)  # before it can run: `drain` must know every piece in the middle phase
        self._jobs.put(lambda: _settle(future, across, piece))


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it references the caller's arrays, and the next job may arrive much later


def _settle(future: Future[None], across: Phase, piece: int) -> None:
    try:
        across(piece)
    except BaseException as error:  # any error: the caller would wait forever for a future that never completes
        future.set_exception(error)
    else:
        future.set_result(None)
