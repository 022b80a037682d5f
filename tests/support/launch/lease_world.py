"""A cluster in virtual time that obeys the policy, and a ledger that notes what must never be."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from farandole.launch.leases.actions import (
    AnyLeaseAction,
    CancelPending,
    EndLease,
    LeaseDecision,
    LookAtQueue,
    Release,
    SetLimit,
    SubmitArray,
)
from farandole.launch.leases.decide import decide
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import (
    AnyLeaseOrder,
    LeaseAdvice,
    LeaseObservation,
    LeaseProgress,
    LeaseRefusal,
)
from farandole.launch.leases.policy_state import LeasePlan

START_S = 1_700_000_000.0
TRAINING = LeaseProgress(step_s=1.0, pause_s=0.2, warmup_s=40.0)
ALIVE = (
    LeasePhase.ASKED,
    LeasePhase.PENDING,
    LeasePhase.STARTING,
    LeasePhase.WARMING,
    LeasePhase.MEMBER,
    LeasePhase.LEAVING,
)


@dataclass
class Call:
    """One call of ``decide``, with all that went in and came out."""

    limits: LeaseLimits
    plan: LeasePlan
    seen: LeaseObservation
    after: LeasePlan
    decisions: list[LeaseDecision]


@dataclass
class LeaseWorld:
    """Jobs of a queue that start after a wait, warm up, train, and end when they are told or their time is over."""

    limits: LeaseLimits
    own: int = 1
    wait_s: float = 30.0
    start_s: float = 5.0
    warmup_s: float = 20.0
    breaks: bool = False
    """Every lease fails while it warms up."""
    slow: bool = False
    """Leases show what they were told one call late: as a look that was on its way shows it."""
    now_s: float = START_S
    plan: LeasePlan = field(default_factory=LeasePlan)
    leases: dict[str, Lease] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    orders: list[AnyLeaseOrder] = field(default_factory=list)
    refusals: list[LeaseRefusal] = field(default_factory=list)
    progress: LeaseProgress = field(default_factory=lambda: TRAINING)
    refuses: str = ""
    arrays: int = 0
    node_hours: float = 0.0
    looked_s: float = START_S
    queued: bool = False
    """Nothing in the queue starts."""
    late: list[AnyLeaseAction] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def advise(self, workers: int, *, low: float = 1e9, saves_s: float = 1e6, refusal: str = "") -> None:
        advice = LeaseAdvice(self.now_s, workers, low, 2 * low, saves_s, refusal)
        self.progress = msgspec.structs.replace(self.progress, advice=advice)

    def of(self, *phases: LeasePhase) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.phase in phases]

    @property
    def have(self) -> int:
        return self.own + sum(lease.workers for lease in self.of(LeasePhase.MEMBER))

    def to(self, lease: Lease, phase: LeasePhase, **changes: float | str) -> None:
        changed = msgspec.structs.replace(lease, phase=phase, since_s=self.now_s)
        self.leases[lease.job] = msgspec.structs.replace(changed, **changes)

    def seen(self) -> LeaseObservation:
        listed = list(self.leases.values())
        self.random.shuffle(listed)
        return LeaseObservation(
            self.now_s, self.have, self.own, tuple(listed), self.progress,
            looked_s=self.now_s - self.looked_s,
            node_hours=self.node_hours, arrays_answered=self.arrays,
            orders=tuple(self.orders), refusals=tuple(self.refusals),
        )  # fmt: skip

    def call(self) -> list[LeaseDecision]:
        """Decide, obey, and note the call."""
        seen, before = self.seen(), self.plan
        self.orders, self.refusals = [], []
        self.plan, decisions = decide(self.limits, before, seen)
        self.calls.append(Call(self.limits, before, seen, self.plan, decisions))
        self.leases = {job: lease for job, lease in self.leases.items() if lease.phase is not LeasePhase.GONE}
        now = [decision.action for decision in decisions]
        if self.slow:
            now, self.late = self.late, now
        for action in now:
            self.obey(action)
        return decisions

    def obey(self, action: AnyLeaseAction) -> None:
        if isinstance(action, SubmitArray):
            self.arrays += 1
            if self.refuses:
                self.refusals.append(LeaseRefusal("submit", f"nonce{action.serial}", self.refuses))
                return
            for index in range(action.count):
                job = f"{800 + action.serial}_{index}"
                self.leases[job] = Lease(
                    job, self.limits.lease_workers, LeasePhase.HELD, self.now_s,
                    nodes=self.limits.lease_nodes, length_s=action.length_s,
                )  # fmt: skip
            return
        if isinstance(action, LookAtQueue):
            self.looked_s = self.now_s
        lease = self.leases.get(getattr(action, "job", ""))
        if lease is None:
            return
        if isinstance(action, Release) and lease.phase is LeasePhase.HELD:
            self.to(lease, LeasePhase.PENDING)
        elif isinstance(action, CancelPending):
            self.to(lease, LeasePhase.GONE, cause="cancelled")
        elif isinstance(action, EndLease):
            self.to(lease, LeasePhase.LEAVING)
        elif isinstance(action, SetLimit):
            self.leases[lease.job] = msgspec.structs.replace(lease, length_s=action.minutes * 60.0)

    def tick(self, seconds: float) -> list[LeaseDecision]:
        """Let time pass, and what happens in it, in the order in which the controller would hear of it."""
        running = self.of(LeasePhase.STARTING, LeasePhase.WARMING, LeasePhase.MEMBER, LeasePhase.LEAVING)
        self.now_s += seconds
        for lease in running:
            over_s = max(0.0, self.now_s - lease.ends_s) if lease.ends_s else 0.0
            self.node_hours += lease.nodes * max(0.0, seconds - over_s) / 3600
        for lease in list(self.leases.values()):
            self.go_on(lease, self.now_s - lease.since_s)
        return self.call()

    def go_on(self, lease: Lease, for_s: float) -> None:
        """One lease, one phase further at most."""
        running = (LeasePhase.STARTING, LeasePhase.WARMING, LeasePhase.MEMBER, LeasePhase.LEAVING)
        if lease.phase in running and lease.ends_s and self.now_s >= lease.ends_s:
            self.to(lease, LeasePhase.GONE, cause="time limit")
        elif lease.phase is LeasePhase.PENDING and for_s >= self.wait_s and not self.queued:
            self.to(lease, LeasePhase.STARTING, ends_s=self.now_s + lease.length_s)
        elif lease.phase is LeasePhase.STARTING and for_s >= self.start_s:
            self.to(lease, LeasePhase.GONE if self.breaks else LeasePhase.WARMING, cause="no python here")
        elif lease.phase is LeasePhase.WARMING and for_s >= self.warmup_s:
            self.to(lease, LeasePhase.MEMBER)
        elif lease.phase is LeasePhase.LEAVING and for_s >= 1.0:
            self.to(lease, LeasePhase.GONE, cause="left")

    def run(self, seconds: float, step_s: float = 10.0) -> list[LeaseDecision]:
        """All decisions of that time."""
        decisions = []
        for _ in range(round(seconds / step_s)):
            decisions += self.tick(step_s)
        return decisions
