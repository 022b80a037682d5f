"""Background tasks: calls on a thread of their own, whose result or error is for whoever waits for them.

>>> task = BackgroundTask(lambda: 6 * 7, "farandole-example")
>>> task.result()
42
"""

# Threads. The outcome needs no lock: the task's thread writes it once, and others read it after joining that thread.
# The thread refers to the call and to the outcome, never to the task: so a task that nobody wants any more is collected
# while its thread still runs, and what owns the task can end the thread when it is itself collected.

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
    """One ``call``, which begins at once, on a daemon thread with this ``name``.

    A daemon, as the interpreter's end would wait for any other thread without a limit, also where other ranks are gone.
    """

    def __init__(self, call: Callable[[], R], name: str) -> None:
        self._outcome: _Outcome[R] = _Outcome()
        # As arguments, which the thread drops at its end: an attribute would keep what the call refers to.
        self.thread = threading.Thread(target=_run, args=(call, self._outcome), name=name, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Wait until the call has ended, well or not; in its own thread, where the collector lets go of it, not."""
        join(self.thread)

    def result(self) -> R:
        """Wait for the call, and return what it returned or raise what it raised."""
        join(self.thread)
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.results[0]


def _run(call: Callable[[], R], outcome: _Outcome[R]) -> None:
    try:
        outcome.results.append(call())
    except BaseException as error:  # whatever it is, it is for the thread that waits; this one would only print it
        outcome.error = error
