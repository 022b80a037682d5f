"""Observations that the policy of leases decides on: all that it knows of the world, at one moment.

>>> seen = LeaseSeen(now_s=1_700_000_000.0, have=2, own=2, orders=(ScaleTo(8),))
>>> seen.orders[0].np
8

Times are in seconds since 1970. Orders and refusals are news: each is told in one call, and then no more. A lease is
listed from its submission until one call has shown it as gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, final

import msgspec

from farandole.largebatch.advice import Advice, Advised
from farandole.launch.leases.lease import Lease


class LeaseOrder(msgspec.Struct, frozen=True, tag=True):
    """Base of what people order, by a command of Farandole or at the scheduler."""


@final
class ScaleTo(LeaseOrder, frozen=True):
    """Train with this many workers, whatever advice says, until ``Resume``."""

    np: int


@final
class Hold(LeaseOrder, frozen=True):
    """Release and submit nothing, and shrink for no advice, until ``Resume``."""


@final
class Resume(LeaseOrder, frozen=True):
    """Go on by advice, whatever was ordered before."""


@final
class Stop(LeaseOrder, frozen=True):
    """End all leases, for good: the training is over."""


@final
class OutsideCancel(LeaseOrder, frozen=True):
    """Somebody has cancelled a lease in the queue that nobody here had cancelled."""

    job: str


@final
class OutsideHold(LeaseOrder, frozen=True):
    """Somebody holds a lease; ``barred`` if only an administrator can release it."""

    job: str
    barred: bool = False


@final
class OutsideLimit(LeaseOrder, frozen=True):
    """Somebody has set the time limit of a lease; ``Lease.ends_s`` and ``length_s`` have it already."""

    job: str


@final
class OutsideSuspend(LeaseOrder, frozen=True):
    """Somebody has suspended a lease: its workers stand still, and count as lost when nothing is heard of them."""

    job: str


AnyLeaseOrder: TypeAlias = ScaleTo | Hold | Resume | Stop | OutsideCancel | OutsideHold | OutsideLimit | OutsideSuspend


@final
class LeaseRefusal(msgspec.Struct, frozen=True):
    """Refusal of the scheduler: ``call`` as in ``Scheduler``, ``subject`` a job or a nonce, and its ``words``."""

    call: str
    subject: str
    words: str


@final
class LeaseAdvice(msgspec.Struct, frozen=True):
    """Advice on the number of workers, as of ``at_s``, in a form for journals; or, with ``refusal``, why there is none.

    ``low`` and ``high`` bound the noise scale, in samples (``high`` of 0: nothing does, as JSON has no infinity).
    ``saves_s`` is how much sooner the training would end.
    """

    at_s: float
    workers: int = 0
    low: float = 0.0
    high: float = 0.0
    saves_s: float = 0.0
    refusal: str = ""

    @classmethod
    def of(cls, advised: Advised, at_s: float, remaining: float = 1.0) -> LeaseAdvice:
        """Convert what ``largebatch.advise`` has returned. ``remaining``: share of the training that is still to do."""
        if not isinstance(advised, Advice):
            return cls(at_s, refusal=str(advised))
        now = advised.prospects[min(advised.current, len(advised.prospects)) - 1]
        saves_s = remaining * (now.seconds - advised.recommended.seconds)
        high = advised.estimate.high
        return cls(at_s, advised.workers, advised.estimate.low, high if math.isfinite(high) else 0.0, saves_s)


@final
class LeaseProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of the training. 0 stands for what is not known yet.

    ``step_s`` is the longest of the latest steps, ``pause_s`` what a change of the workers costs the others, and
    ``warmup_s`` the time from the start of a lease until its workers can join. ``batch`` is that of one worker.
    Metrics that are not finite are left out: no rule holds for them, and JSON has no word for them.
    """

    step: int = 0
    samples: int = 0
    step_s: float = 0.0
    pause_s: float = 0.0
    warmup_s: float = 0.0
    remaining_s: float = 0.0
    batch: float = 0.0
    advice: LeaseAdvice | None = None
    metrics: Mapping[str, float] = {}

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.metrics.values())):
            finite = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
            msgspec.structs.force_setattr(self, "metrics", finite)


@final
class LeaseObservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that is known now.

    ``have`` workers train, of which ``own`` are the lead's. ``looked_s`` is how long ago the last look at the queue
    was answered. ``node_hours`` are used up, and beside the leases others (the lead) will use ``node_hours_committed``
    more. ``arrays_answered`` counts the arrays whose submission was answered, either way, since the run began.
    ``utc_offset_s`` makes local time of ``now_s``.
    """

    now_s: float
    have: int
    own: int = 0
    leases: tuple[Lease, ...] = ()
    progress: LeaseProgress = LeaseProgress()
    looked_s: float = 0.0
    node_hours: float = 0.0
    node_hours_committed: float = 0.0
    arrays_answered: int = 0
    orders: tuple[AnyLeaseOrder, ...] = ()
    refusals: tuple[LeaseRefusal, ...] = ()
    utc_offset_s: float = 0.0
