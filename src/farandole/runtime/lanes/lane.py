"""Lane of collectives with names, as the session sees it.

handle = lane.submit(announcement, background=False)
handle.wait()

A signal handler may have stopped the main thread in the middle of a lane, where it goes on when the handler has
returned. So lanes remember who is inside (``Reentry``), and refuse a second collective there (``interrupting``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from farandole.control.messages import Order
from farandole.errors import UsageError
from farandole.runtime.coordination.agreement import title
from farandole.runtime.lanes.announcement import Announcement, Key
from farandole.runtime.lanes.call import Call, CallResult, Handle
from farandole.runtime.lanes.failure import Failure


class PendingCollectives(NamedTuple):
    """Collectives of this rank on their way.

    ``submitted`` are all of them. ``given`` is by the number of each open grant of the peer lane: how many rounds this
    rank has contributed to. ``awaiting`` are those of these rounds that are not over, with their grants, by name.
    """

    submitted: list[Key]
    given: dict[int, int]
    awaiting: dict[Key, int]


class Performer(Protocol):
    """Executes an order on whatever engine its process set has."""

    def __call__(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
        """One list of results per name; errors leave every later collective undone, except ``MismatchError``."""


class Lane(Protocol):
    """Lane of named collectives. ``last`` is the order executed last, ``inside`` the one being executed now."""

    last: Order | None
    inside: Order | None

    def submit(self, announcement: Announcement, background: bool, progress_s: float = 0.0) -> Handle:
        """Announce that this rank is ready; ``background`` if nobody may wait for it soon.

        If it goes from rank to rank, this thread waits for the others up to ``progress_s``, while no other one does.
        """

    def refuse(self, announcement: Announcement) -> None:
        """Tell the other ranks that this one has come and cannot take part, so that they raise; nobody waits here."""

    def end(self, failure: Failure) -> None:
        """Fail everything in flight and all that comes later."""

    def await_exit(self, timeout_s: float | None) -> bool:
        """After ``end``, wait until no thread leads any more; false after ``timeout_s`` (``None``: no limit)."""

    def close(self) -> None:
        """Free what it has, once no thread is in the lane any more."""

    def waits(self) -> list[tuple[int, int, Announcement]]:
        """Threads that wait here, each with a number that no other wait has, and what it waits for."""

    def in_flight(self) -> PendingCollectives | None:
        """Collectives on their way; ``None`` if that just changes, or somebody's wait is over. It waits for nobody."""


def interrupting(announcement: Announcement) -> UsageError:
    """Error for a signal handler's collective: the thread that it has interrupted is inside of another one."""
    return interrupted(title(announcement.kind, announcement.name[1], announcement.name[0]), "another collective")


def interrupted(asked: str, below: str) -> UsageError:
    """Error for a signal handler that ``asked`` for what cannot begin before ``below`` it on the stack has ended."""
    return UsageError(
        f"{asked} was asked for in a signal handler that has interrupted this thread in the middle of {below}, which "
        "can only go on when the handler has returned: set a flag in the handler, and act on it in the training loop"
    )
