"""Lane of collectives with names, as the session sees it.

handle = lane.submit(announcement, background=False)
handle.wait()

A signal handler may have stopped the main thread in the middle of a lane, where it goes on when the handler has
returned. So lanes remember who is inside (``Reentry``), and refuse a second collective there (``interrupting``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from farandole.control.messages import Order
from farandole.errors import UsageError
from farandole.runtime.coordination.agreement import title
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.call import Call, CallResult, Handle
from farandole.runtime.lanes.failure import Failure


class Performer(Protocol):
    """Executes an order on whatever engine its process set has."""

    def __call__(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
        """One list of results per name; errors leave every later collective undone, except ``MismatchError``."""


class Lane(Protocol):
    """Lane of named collectives. ``last`` is the order executed last, ``inside`` the one being executed now."""

    last: Order | None
    inside: Order | None

    def submit(self, announcement: Announcement, background: bool) -> Handle:
        """Announce that this rank is ready; ``background`` if nobody may wait for it soon."""

    def refuse(self, announcement: Announcement) -> None:
        """Tell the other ranks that this one has come and cannot take part, so that they raise; nobody waits here."""

    def end(self, failure: Failure) -> None:
        """Fail everything in flight and all that comes later."""

    def await_exit(self, timeout_s: float | None) -> bool:
        """After ``end``, wait until no thread leads any more; false after ``timeout_s`` (``None``: no limit)."""

    def close(self) -> None:
        """Free what it has, once no thread is in the lane any more."""


def interrupting(announcement: Announcement) -> UsageError:
    """Error for a signal handler's collective: the thread that it has interrupted is inside of another one."""
    return interrupted(title(announcement.kind, announcement.name[1], announcement.name[0]), "another collective")


def interrupted(asked: str, below: str) -> UsageError:
    """Error for a signal handler that ``asked`` for what cannot begin before ``below`` it on the stack has ended."""
    return UsageError(
        f"{asked} was asked for in a signal handler that has interrupted this thread in the middle of {below}, which "
        "can only go on when the handler has returned: set a flag in the handler, and act on it in the training loop"
    )
