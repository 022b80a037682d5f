"""Background tasks: calls on their own threads; the waiting thread gets the result or the error.

>>> task = BackgroundTask(lambda: 6 * 7, "farandole-example")
>>> task.result()
42
"""

# Threads. The outcome needs no lock: the task's thread writes it once, and other threads read it after joining that
# thread. The thread refers to the call and to the outcome, never to the task. So the collector can free an unused task
# while its thread still runs, and the finalizer of the task's owner can end the thread.

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

from farandole.runtime.lanes.thread_joins import join

R = TypeVar("R")


class _Outcome(Generic[R]):
    def __init__(self) -> None:
        self.results: list[R] = []
        self.error: BaseException | None = None


@final
class BackgroundTask(Generic[R]):
    """One ``call``, started at once on a daemon thread with this ``name``.

    The thread is a daemon because at exit the interpreter joins other threads without a timeout, even if ranks failed.
    """

    def __init__(self, call: Callable[[], R], name: str) -> None:
        self._outcome: _Outcome[R] = _Outcome()
        # Passed as arguments, because the thread drops these at its end; an attribute would keep the call's objects.
        self.thread = threading.Thread(target=_store_outcome, args=(call, self._outcome), name=name, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until the call has returned or raised. No-op on the task's own thread (the collector may run there)."""
        join(self.thread)

    def result(self) -> R:
        """Wait for the call, and return its result or raise its error."""
        join(self.thread)
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.results[0]


def _store_outcome(call: Callable[[], R], outcome: _Outcome[R]) -> None:
    try:
        outcome.results.append(call())
    except BaseException as error:  # any error belongs to the waiting thread; this thread would only print it
        outcome.error = error
