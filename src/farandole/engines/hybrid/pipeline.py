"""Work on pieces of a message in three phases, of which the middle one overlaps with the other two.

pipeline = Pipeline("process set 0")
pipeline.run(8, reduce_inside, reduce_across, gather_inside)
pipeline.close()
"""

# Two threads. The caller runs ``before`` and ``after``; a thread of the pipeline, made for the first long message, runs
# ``across``. They share ``_jobs``, a queue in one direction, and the future of each piece in the other, and nothing
# else, so there is no lock. ``_pending`` and ``_thread`` belong to the caller (an engine has one at a time). The thread
# takes pieces in their order, so they cross in one order on all members, and the last future settles last. The engine
# that ``across`` uses has one user at a time as well: while anything is pending, only this thread calls it.
#
# Memory is why ``drain`` exists: an error in a phase must not reach the caller of a collective while a piece of its
# array may still be written to. It waits without a time limit: whoever calls it aborts the engines before (``_fail``).

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
"""Pieces that are across at once or wait for it. Two keep the wire busy; the third lets neighbours drift apart."""


@final
class Pipeline:
    """The thread of the middle phase, which lives from the first long message to ``close``, or as this object."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pending: deque[Future[None]] = deque()
        self._thread: threading.Thread | None = None

    def run(self, pieces: int, before: Phase, across: Phase | None, after: Phase) -> None:
        """Call each phase with 0, 1, ... ``pieces`` - 1, in this order; piece k may use memory that k - IN_FLIGHT used.

        ``across`` runs on a thread of its own while this one does ``before`` for the next pieces and ``after`` for the
        last ones; a single piece stays here. Raises what a phase raises; ``drain`` waits for what is then still across.
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
                    self._pending[0].result()  # what is raised there is raised here
                    self._pending.popleft()  # not before: after an interrupt `drain` must still wait for it
                after(done)
            if piece < pieces:
                before(piece)
                if across is not None:
                    self._submit(across, piece)

    @property
    def is_busy(self) -> bool:
        """True while something is across."""
        return bool(self._pending)

    def drain(self) -> None:
        """Return when nothing is across any more, however it ended."""
        if self._thread is not None:
            # What comes out of the queue after all others. Not the futures: a signal handler's exception may have come
            # between a future and its job, and nobody would ever settle that one.
            reached = threading.Event()
            self._jobs.put(reached.set)
            reached.wait()
        self._pending.clear()

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)  # also without a thread: nothing is submitted after this
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _submit(self, across: Phase, piece: int) -> None:
        if self._thread is None:
            # It gets the queue alone: if it held this object, that would never be collected, and the thread never end.
            # A daemon, as it may be in an engine that nobody has aborted when the process ends.
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=f"farandole across {self._label}", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        future: Future[None] = Future()
        self._pending.append(future)  # before it can run: what is across must be known to `drain`
        self._jobs.put(lambda: _settle(future, across, piece))


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the caller's arrays, and the next may be long in coming


def _settle(future: Future[None], across: Phase, piece: int) -> None:
    try:
        across(piece)
    except BaseException as error:  # whatever it is: a future that is never settled is waited for without end
        future.set_exception(error)
    else:
        future.set_result(None)
