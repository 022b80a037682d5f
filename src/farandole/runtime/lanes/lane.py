"""Interface of the lanes of named collectives.

handle = lane.submit(announcement, background=False)
handle.wait()

A signal handler may interrupt the main thread inside a lane, and the frame below continues only after the handler
returns. So lanes record which threads are inside (``Reentry``), and refuse a second collective (``interrupting``).
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
    """Collectives of this rank in flight.

    ``submitted`` are all of them. ``given`` has, for the number of each open grant of the peer lane, how many rounds
    this rank has contributed to. ``awaiting`` has the grants of those rounds that are not over, by name.
    """

    submitted: list[Key]
    given: dict[int, int]
    awaiting: dict[Key, int]


class Performer(Protocol):
    """Executes an order on the engine of its process set."""

    def __call__(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
        """Return one list of results per name; any error but ``MismatchError`` ends the generation."""


class Lane(Protocol):
    """Lane of named collectives. ``last`` is the order executed last, ``inside`` the one being executed now."""

    last: Order | None
    inside: Order | None

    def submit(self, announcement: Announcement, background: bool, progress_s: float = 0.0) -> Handle:
        """Announce that this rank is ready; ``background`` if possibly no thread waits for it soon.

        On the peer lane this thread waits for the other ranks up to ``progress_s``, unless another thread leads.
        """

    def refuse(self, announcement: Announcement) -> None:
        """Tell the other ranks that this rank cannot take part, so that they raise; no thread waits here."""

    def end(self, failure: Failure) -> None:
        """Fail all collectives in flight and all later ones."""

    def await_exit(self, timeout_s: float | None) -> bool:
        """After ``end``, wait until no thread leads any more; false after ``timeout_s`` (``None``: no limit)."""

    def close(self) -> None:
        """Free its resources, once no thread is in the lane any more."""

    def waits(self) -> list[tuple[int, int, Announcement]]:
        """Threads that wait here, each with a unique token of the wait and the awaited announcement."""

    def in_flight(self) -> PendingCollectives | None:
        """Collectives in flight; ``None`` if they are just changing, or a thread's wait is over. Never blocks."""


def interrupting(announcement: Announcement) -> UsageError:
    """Error for a collective in a signal handler that has interrupted its thread inside of another collective."""
    return interrupted(title(announcement.kind, announcement.name[1], announcement.name[0]), "another collective")


def interrupted(asked: str, below: str) -> UsageError:
    """Error for a signal handler that ``asked`` for an operation, which would wait for ``below`` on the same stack."""
    return UsageError(
        f"{asked} was asked for in a signal handler that has interrupted this thread in the middle of {below}, which "
        "can only go on when the handler has returned: set a flag in the handler, and act on it in the training loop"
    )
