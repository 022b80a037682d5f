"""Observation that the policy of leases decides on: its complete input at one moment.

>>> seen = LeaseObservation(now_s=1_700_000_000.0, have=2, own=2, orders=(ScaleTo(8),))
>>> seen.orders[0].np
8

Times are in seconds since 1970. Each order and refusal is passed in one call only. A lease is listed from its
submission until one call has shown it as gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, final

import msgspec

from farandole.largebatch.advice import Advice, Advised
from farandole.launch.leases.lease import Lease


class LeaseOrder(msgspec.Struct, frozen=True, tag=True):
    """Base of the orders of users, given with a command of Farandole or of the scheduler."""


@final
class ScaleTo(LeaseOrder, frozen=True):
    """Train with this many workers, ignoring advice, until ``Resume``; ``why``: given by the search, not by a user."""

    np: int
    why: str = ""


@final
class Hold(LeaseOrder, frozen=True):
    """Release and submit no leases, and do not shrink on advice, until ``Resume``."""


@final
class Resume(LeaseOrder, frozen=True):
    """Follow advice again; cancels earlier orders."""


@final
class Stop(LeaseOrder, frozen=True):
    """End all leases: the training is over."""


@final
class OutsideCancel(LeaseOrder, frozen=True):
    """A user or an administrator cancelled a queued lease; the policy did not."""

    job: str


@final
class OutsideHold(LeaseOrder, frozen=True):
    """A user or an administrator holds a lease; ``barred`` if only an administrator can release it."""

    job: str
    barred: bool = False


@final
class OutsideLimit(LeaseOrder, frozen=True):
    """A user or an administrator set the time limit of a lease; ``Lease.ends_s`` and ``length_s`` have it already."""

    job: str


@final
class OutsideSuspend(LeaseOrder, frozen=True):
    """A user or an administrator suspended a lease: its workers stop, and count as lost after the heartbeat timeout."""

    job: str


AnyLeaseOrder: TypeAlias = ScaleTo | Hold | Resume | Stop | OutsideCancel | OutsideHold | OutsideLimit | OutsideSuspend


@final
class LeaseRefusal(msgspec.Struct, frozen=True):
    """Refusal of the scheduler: ``call`` as in ``Scheduler``; ``subject``: job or nonce; ``words``: its message."""

    call: str
    subject: str
    words: str


@final
class LeaseAdvice(msgspec.Struct, frozen=True):
    """Advice on the number of workers, as of ``at_s``, as written to journals; ``refusal``: why there is none.

    ``low`` and ``high`` bound the noise scale, in samples (``high`` of 0: no upper bound, because JSON has no
    infinity). ``saves_s``: how much sooner the training would end.
    """

    at_s: float
    workers: int = 0
    low: float = 0.0
    high: float = 0.0
    saves_s: float = 0.0
    refusal: str = ""

    @classmethod
    def of(cls, advised: Advised, at_s: float, remaining: float = 1.0) -> LeaseAdvice:
        """Convert the result of ``largebatch.advise``. ``remaining``: share of the training that is still to do."""
        if not isinstance(advised, Advice):
            return cls(at_s, refusal=str(advised))
        now = advised.prospects[min(advised.current, len(advised.prospects)) - 1]
        saves_s = remaining * (now.seconds - advised.recommended.seconds)
        high = advised.estimate.high
        return cls(at_s, advised.workers, advised.estimate.low, high if math.isfinite(high) else 0.0, saves_s)


@final
class LeaseProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of the training. 0 stands for what is not known yet.

    ``step_s``: the longest of the latest steps; ``pause_s``: the pause of the other workers when one joins or leaves;
    ``warmup_s``: time from the start of a lease until its workers can join; ``batch``: batch size of one worker.
    Metrics that are not finite are left out: no rule holds for them, and JSON cannot represent them.
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

    ``have``: number of workers that train; ``own``: how many of them are the leader's. ``looked_s``: time since the
    last answered look at the queue. ``node_hours``: used so far; ``node_hours_committed``: what others (the leader)
    will still use beside the leases. ``arrays_answered``: number of arrays since the run began whose submission was
    answered, accepted or not. ``utc_offset_s``: added to ``now_s``, gives local time.
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
