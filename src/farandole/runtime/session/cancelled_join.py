"""Cancellation of a wait to join a job, by a signal handler of the waiting process.

    withdrawal = CancelledJoin()
    link = Link(..., withdrawal=withdrawal)      # in the main thread, where it waits for the other ranks
    withdrawal.end_wait()                        # in a handler on top of it: the wait raises ``StartError``

Threads. Everything runs in one thread: the handler runs on top of the wait, between any two lines. An exception raised
by the handler could leave sockets open and locks held. So it interrupts the wait and returns.
"""

from __future__ import annotations

from typing import Protocol, final


class Wait(Protocol):
    """Wait that can be interrupted."""

    def interrupt(self) -> None:
        """End the wait at once, or prevent it. A signal handler calls this, on top of any line."""


@final
class CancelledJoin:
    """Cancellation of joining a job. ``end_wait`` is called once, before the wait begins or during it."""

    def __init__(self, given: bool = False) -> None:
        self.given = given
        self._wait: Wait | None = None

    def end_wait(self) -> None:
        """End the wait, now and later."""
        self.given = True
        if self._wait is not None:
            self._wait.interrupt()

    def applies_to(self, wait: Wait | None) -> None:
        """Set the wait to interrupt, at once if ``end_wait`` was called; ``None``: the wait is over."""
        self._wait = wait
        if self.given and wait is not None:  # after the assignment: a handler that ran before it found no wait
            wait.interrupt()
