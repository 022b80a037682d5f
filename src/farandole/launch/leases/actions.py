"""Actions that ``decide`` decides on, each with a reason to be logged.

>>> LeaseDecision(EndLease("812_3"), "its job ends at 14:03").reason
'its job ends at 14:03'
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec


class LeaseAction(msgspec.Struct, frozen=True, tag=True):
    """Base of all actions. The tag is the class name, which is what a journal shows."""


@final
class Release(LeaseAction, frozen=True):
    """Release a held lease: from now on it is ``ASKED``, until a look shows more."""

    job: str


@final
class SubmitArray(LeaseAction, frozen=True):
    """Submit an array of ``count`` held leases of this length.

    ``serial`` counts the arrays of a run from 1, and is never used twice: the nonce can be made of it. Nothing is
    submitted before ``LeaseObservation.arrays_answered`` has reached it.
    """

    serial: int
    count: int
    length_s: float


@final
class EndLease(LeaseAction, frozen=True):
    """Let the workers of a lease leave at the next commit; its agent, and with it its job, then ends by itself."""

    job: str


@final
class CancelPending(LeaseAction, frozen=True):
    """Cancel a lease that waits or is held. Should it have started meanwhile, it leaves as any that is cancelled."""

    job: str


@final
class SetLimit(LeaseAction, frozen=True):
    """Set the time limit of a lease that has not started: an earlier end finds a hole in the queue sooner."""

    job: str
    minutes: int


@final
class SetNice(LeaseAction, frozen=True):
    """Lower the priority of a lease that waits."""

    job: str
    nice: int


@final
class LookAtQueue(LeaseAction, frozen=True):
    """Look at the arrays of the run."""


@final
class LookAtNodes(LeaseAction, frozen=True):
    """Look whether nodes of leases that run are being drained."""


@final
class Say(LeaseAction, frozen=True):
    """Tell the user the reason; nothing is to be done."""


AnyLeaseAction: TypeAlias = (
    Release | SubmitArray | EndLease | CancelPending | SetLimit | SetNice | LookAtQueue | LookAtNodes | Say
)
LOOKS = (LookAtQueue, LookAtNodes)
"""Actions that nobody need be told of: they come again and again, and change nothing."""


@final
class LeaseDecision(msgspec.Struct, frozen=True):
    """An action and its reason."""

    action: AnyLeaseAction
    reason: str
