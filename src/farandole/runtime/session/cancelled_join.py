"""Withdrawal of a process that waits to join a job: its signal handler ends the wait.

    withdrawal = CancelledJoin()
    link = Link(..., withdrawal=withdrawal)      # in the main thread, where it waits for the other ranks
    withdrawal.give()                            # in a handler on top of that: the wait raises ``StartError``

Threads. All of it happens in one thread: a handler runs on top of the wait, between any two lines. An exception that
it raised there might leave sockets open and locks held. So it interrupts the wait and returns.
"""

from __future__ import annotations

from typing import Protocol, final


class Wait(Protocol):
    """Wait that can be interrupted."""

    def interrupt(self) -> None:
        """Have it end at once, or not begin. A signal handler calls it, on top of any line."""


@final
class CancelledJoin:
    """Withdrawal from a job that is about to be joined. It is given once, before the wait begins or during it."""

    def __init__(self, given: bool = False) -> None:
        self.given = given
        self._wait: Wait | None = None

    def give(self) -> None:
        """End the wait, now and later."""
        self.given = True
        if self._wait is not None:
            self._wait.interrupt()

    def applies_to(self, wait: Wait | None) -> None:
        """Interrupt ``wait`` if it is given, and when it is; with ``None``, that which is over no more."""
        self._wait = wait
        if self.given and wait is not None:  # after the assignment: a handler in between has found no wait
            wait.interrupt()
