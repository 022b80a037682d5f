"""Work on pieces of a message in three phases, of which the middle one overlaps with the other two.

pipeline = Pipeline("process set 0")
pipeline.run(8, reduce_inside, reduce_across, gather_inside)
pipeline.close()
"""

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
    """The thread of the middle phase, which lives from the first long message to ``close``, or as long as this."""

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
                    self._pending.popleft().result()
                after(done)
            if piece < pieces:
                before(piece)
                if across is not None:
                    self._submit(across, piece)

    @property
    def is_busy(self) -> bool:
        """Whether something is across."""
        return bool(self._pending)

    def drain(self) -> None:
        """Return when nothing is across any more, however it ended."""
        while self._pending:
            self._pending.popleft().exception()

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _submit(self, across: Phase, piece: int) -> None:
        if self._thread is None:
            # It must not keep this object, whose end is its own.
            self._thread = threading.Thread(
                target=_work, args=(self._jobs,), name=f"farandole across {self._label}", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        future: Future[None] = Future()
        self._pending.append(future)
        self._jobs.put(lambda: _settle(future, across, piece))


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job


def _settle(future: Future[None], across: Phase, piece: int) -> None:
    try:
        across(piece)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(None)
