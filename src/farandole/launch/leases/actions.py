"""Actions that ``decide`` returns, each with a reason to log.

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
    """Release a held lease: it is ``ASKED`` until a look at the queue shows its new state."""

    job: str


@final
class SubmitArray(LeaseAction, frozen=True):
    """Submit an array of ``count`` held leases of this length.

    ``serial`` counts the arrays of a run from 1, and is never used twice, so the nonce can be derived from it. No other
    array is submitted before ``LeaseObservation.arrays_answered`` has reached it.
    """

    serial: int
    count: int
    length_s: float


@final
class EndLease(LeaseAction, frozen=True):
    """Make the workers of a lease leave at the next commit; its agent, and with it its job, then exits by itself."""

    job: str


@final
class CancelPending(LeaseAction, frozen=True):
    """Cancel a waiting or held lease. If it has started meanwhile, its workers leave as on any cancellation."""

    job: str


@final
class SetLimit(LeaseAction, frozen=True):
    """Set the time limit of a lease that has not started: a shorter job fits a backfill hole sooner."""

    job: str
    minutes: int


@final
class SetNice(LeaseAction, frozen=True):
    """Lower the priority of a waiting lease."""

    job: str
    nice: int


@final
class LookAtQueue(LeaseAction, frozen=True):
    """Look at the arrays of the run."""


@final
class LookAtNodes(LeaseAction, frozen=True):
    """Check whether nodes of running leases are being drained."""


@final
class Say(LeaseAction, frozen=True):
    """Print the reason for the user; no other action."""


AnyLeaseAction: TypeAlias = (
    Release | SubmitArray | EndLease | CancelPending | SetLimit | SetNice | LookAtQueue | LookAtNodes | Say
)
LOOKS = (LookAtQueue, LookAtNodes)
"""Actions that are not printed: they recur often, and change nothing."""


@final
class LeaseDecision(msgspec.Struct, frozen=True):
    """An action and its reason."""

    action: AnyLeaseAction
    reason: str
