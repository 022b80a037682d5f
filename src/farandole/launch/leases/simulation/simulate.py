"""Simulation of one training: on leases managed by the policy, or on a chain of jobs of fixed size.

    run = simulate(limits, trace, TrainingModel(), mode="holes")
    run.seconds, run.node_hours, run.waits_s            # seconds: None if the trace ended before
    beside = simulate_static(limits, trace, TrainingModel(), mode="holes", workers=4)

Virtual time advances from event to event. The policy is called as in a real run: after each event, and when its
deadline is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, final

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
from farandole.launch.leases.journal import record
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import LeaseObservation, LeaseProgress
from farandole.launch.leases.policy_state import LeasePlan
from farandole.launch.leases.simulation.queues import Backfill, Holes, SimulatedQueue
from farandole.launch.leases.simulation.trace import Trace
from farandole.launch.leases.simulation.training import SimulatedTraining, TrainingModel

Mode: TypeAlias = Literal["holes", "backfill"]
QUEUES: dict[str, type[Holes] | type[Backfill]] = {"holes": Holes, "backfill": Backfill}
CALLS_S = 1.0
"""Time from the start of a job until its agent has connected."""
LEAVES_S = 1.0
"""Time from the last step of a lease until its job has ended."""
HOUR_S = 3600.0


@final
class RunPoint(NamedTuple):
    """State of a simulated run from ``at_s`` on, in seconds since its beginning."""

    at_s: float
    nodes: int
    workers: int
    batch: float
    noise: float
    """Lower bound of the noise scale by the latest advice; 0 before the first."""


@final
class SimulatedRun(NamedTuple):
    """Result of a simulation. ``seconds``: time of the training; ``None``: the trace ended after ``share`` of it."""

    name: str
    seconds: float | None
    share: float
    node_hours: float
    waits_s: tuple[float, ...]
    changes: int
    """Number of changes of the number of workers; 0 for a static size."""
    points: tuple[RunPoint, ...]
    starts_s: tuple[float, ...]
    """Start time of each job in ``waits_s``."""
    decided: tuple[tuple[float, LeaseDecision], ...] = ()


def simulate(
    limits: LeaseLimits,
    trace: Trace,
    model: TrainingModel,
    *,
    mode: Mode = "holes",
    own: int = 0,
    seed: int = 1,
    write: Callable[[str], object] | None = None,
) -> SimulatedRun:
    """Train on leases in the cluster of a trace, from its first submission on. ``write`` receives the journal's lines.

    The leader has ``own`` workers from the beginning, on nodes outside of the trace.
    """
    return LeaseSimulation(limits, trace, model, mode, own, seed, write).run()


@final
class LeaseSimulation:
    """Event-driven simulation of a training on leases."""

    def __init__(
        self,
        limits: LeaseLimits,
        trace: Trace,
        model: TrainingModel,
        mode: Mode,
        own: int,
        seed: int,
        write: Callable[[str], object] | None,
    ) -> None:
        self._limits, self._model, self._own, self._write = limits, model, own, write
        self._own_nodes = math.ceil(own * limits.lease_nodes / limits.lease_workers)
        self._begin_s = self._now_s = trace.begin_s
        self._end_s = trace.end_s
        self._queue: SimulatedQueue = QUEUES[mode](trace, trace.begin_s)
        self._training = SimulatedTraining(model, limits.batch, seed)
        most = own + limits.most_leases * limits.lease_workers
        self._most = min(most, limits.max_np or most)
        self._plan = LeasePlan()
        self._leases: dict[str, Lease] = {}
        self._due_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._progress = LeaseProgress(pause_s=model.pause_s, warmup_s=model.warmup_s + CALLS_S)
        self._advice_due_s = trace.begin_s + model.advice_s
        self._looked_s = trace.begin_s
        self._arrays = 0
        self._node_hours = 0.0
        self._pause_s = 0.0
        self._has_news = False
        self._waits: list[float] = []
        self._starts: list[float] = []
        self._changes = 0
        self._points: list[RunPoint] = []
        self._decided: list[tuple[float, LeaseDecision]] = []

    def run(self) -> SimulatedRun:
        """Run until the training or the trace ends."""
        have = self._have
        self._call()
        while not self._training.is_over and self._now_s < self._end_s:
            self._pass(max(self._now_s, min(self._next_s(), self._end_s)))
            for job in self._queue.advance(self._now_s):
                self._started(job)
            self._go_on()
            if self._have != have:
                self._changes += 1
                self._pause_s += self._model.pause_s
                have = self._have
            self._call()
        is_over = self._training.is_over
        seconds = self._now_s - self._begin_s if is_over else None
        return SimulatedRun(
            "by leases", seconds, self._training.share, self._node_hours, tuple(self._waits), self._changes,
            tuple(self._points), tuple(self._starts), tuple(self._decided),
        )  # fmt: skip

    # -- the cluster ---------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> list[Lease]:
        waits = (LeasePhase.HELD, LeasePhase.ASKED, LeasePhase.PENDING)
        return [lease for lease in self._leases.values() if lease.phase not in waits]

    @property
    def _have(self) -> int:
        members = (lease.workers for lease in self._leases.values() if lease.phase is LeasePhase.MEMBER)
        return self._own + sum(members)

    @property
    def _trains(self) -> int:
        """Number of workers that train: 0 while there are fewer than ``min_np``."""
        return self._have if self._have >= self._limits.min_np else 0

    def _next_s(self) -> float:
        """Time of the next event."""
        due_s = min(self._due_s.values(), default=math.inf)
        remaining_s = self._training.remaining_s(self._trains) or math.inf
        if self._has_news:
            return self._now_s
        over_s = self._now_s + max(remaining_s + self._pause_s, 1e-3)
        return min(self._queue.next_s, self._plan.next_s or math.inf, due_s, self._advice_due_s, over_s)

    def _pass(self, to_s: float) -> None:
        """Advance time to ``to_s``, or to the end of the training."""
        seconds = to_s - self._now_s
        paused_s = min(seconds, self._pause_s)
        self._pause_s -= paused_s
        trained_s = self._training.train(seconds - paused_s, self._trains)
        if self._training.is_over:
            seconds = paused_s + trained_s
        nodes = self._own_nodes + sum(lease.nodes for lease in self._running)
        self._node_hours += nodes * seconds / HOUR_S
        self._now_s = self._now_s + seconds if self._training.is_over else to_s

    def _started(self, job: str) -> None:
        lease = self._leases[job]
        self._waits.append(self._now_s - self._asked_s.pop(job))
        self._starts.append(self._now_s - self._begin_s)
        self._to(lease, LeasePhase.STARTING, CALLS_S, ends_s=self._now_s + lease.length_s)

    def _to(self, lease: Lease, phase: LeasePhase, for_s: float, ends_s: float = 0.0) -> None:
        """Put a lease in ``phase`` for ``for_s``, or until its job ends."""
        ends_s = ends_s or lease.ends_s
        self._leases[lease.job] = msgspec.structs.replace(lease, phase=phase, since_s=self._now_s, ends_s=ends_s)
        self._due_s[lease.job] = min(self._now_s + for_s, ends_s or math.inf)

    def _go_on(self) -> None:
        """Move leases whose deadline has passed to their next phase."""
        for job, due_s in list(self._due_s.items()):
            if due_s > self._now_s:
                continue
            lease = self._leases[job]
            if lease.phase is LeasePhase.LEAVING or lease.ends_s <= self._now_s:
                del self._due_s[job]
                self._queue.end(job)
                self._leases[job] = msgspec.structs.replace(lease, phase=LeasePhase.GONE, since_s=self._now_s)
            elif lease.phase is LeasePhase.STARTING:
                self._to(lease, LeasePhase.WARMING, self._model.warmup_s)
            else:
                self._to(lease, LeasePhase.MEMBER, math.inf)

    # -- the policy ----------------------------------------------------------------------------------------------------

    def _call(self) -> None:
        """Call the policy, and carry out its decisions."""
        self._observe()
        self._has_news = False
        seen = LeaseObservation(
            self._now_s, self._have, self._own, tuple(self._leases.values()), self._progress,
            self._now_s - self._looked_s, self._node_hours, arrays_answered=self._arrays,
        )  # fmt: skip
        before = self._plan
        self._plan, decisions = decide(self._limits, before, seen)
        if self._write is not None:
            self._write(record(self._limits, before, seen, self._plan, decisions))
        self._leases = {job: lease for job, lease in self._leases.items() if lease.phase is not LeasePhase.GONE}
        for decision in decisions:
            self._decided.append((self._now_s - self._begin_s, decision))
            self._obey(decision.action)
        self._note()

    def _observe(self) -> None:
        """Update the measurements that a real training would report."""
        have = self._trains
        step_s = self._training.steps(have).step_s(have) if have else 0.0
        advice = self._progress.advice
        if self._now_s >= self._advice_due_s:
            self._advice_due_s = self._now_s + self._model.advice_s
            advice = self._training.advice(self._now_s, have, self._most) if have else advice
        self._progress = msgspec.structs.replace(
            self._progress,
            step_s=step_s,
            remaining_s=self._training.remaining_s(have),
            batch=self._model.batch,
            samples=int(self._training.done),
            advice=advice,
            metrics={"share": self._training.share, "samples": self._training.done},
        )

    def _obey(self, action: AnyLeaseAction) -> None:
        if isinstance(action, SubmitArray):
            self._arrays += 1
            self._has_news = True
            for index in range(action.count):
                job = f"{action.serial}_{index}"
                workers, nodes = self._limits.lease_workers, self._limits.lease_nodes
                self._leases[job] = Lease(
                    job, workers, LeasePhase.HELD, self._now_s, nodes=nodes, length_s=action.length_s
                )
        elif isinstance(action, LookAtQueue):
            self._looked_s = self._now_s
        elif isinstance(action, Release | CancelPending | EndLease | SetLimit):
            self._obey_for(self._leases[action.job], action)

    def _obey_for(self, lease: Lease, action: Release | CancelPending | EndLease | SetLimit) -> None:
        job = lease.job
        if isinstance(action, SetLimit):
            self._leases[job] = msgspec.structs.replace(lease, length_s=action.minutes * 60.0)
        elif isinstance(action, EndLease):
            self._to(lease, LeasePhase.LEAVING, self._progress.step_s + LEAVES_S)
        elif isinstance(action, Release):
            self._asked_s[job] = self._now_s
            self._leases[job] = msgspec.structs.replace(lease, phase=LeasePhase.PENDING, since_s=self._now_s)
            self._queue.submit(job, lease.nodes, lease.length_s)
        else:
            self._asked_s.pop(job, None)
            self._queue.end(job)
            self._leases[job] = msgspec.structs.replace(lease, phase=LeasePhase.GONE, since_s=self._now_s)

    def _note(self) -> None:
        """Append a point for the picture if it differs from the last one."""
        have, advice = self._trains, self._progress.advice
        nodes = self._own_nodes + sum(lease.nodes for lease in self._running)
        batch = self._training.steps(have).global_batch(have) if have else 0.0
        point = RunPoint(self._now_s - self._begin_s, nodes, have, batch, advice.low if advice else 0.0)
        if not self._points or point[1:] != self._points[-1][1:]:
            self._points.append(point)


def simulate_static(
    limits: LeaseLimits, trace: Trace, model: TrainingModel, *, workers: int, mode: Mode = "holes"
) -> SimulatedRun:
    """Train on ``workers`` in a chain of jobs as long as a lease; each job is submitted when the previous one ends.

    Between two jobs the training waits in the queue, which costs only time: each job starts from the last checkpoint.
    """
    training = SimulatedTraining(model, limits.batch)
    queue: SimulatedQueue = QUEUES[mode](trace, trace.begin_s)
    nodes = math.ceil(workers * limits.lease_nodes / limits.lease_workers)
    now_s, node_hours, number = trace.begin_s, 0.0, 0
    waits: list[float] = []
    starts: list[float] = []
    points = [RunPoint(0.0, 0, 0, 0.0, 0.0)]
    batch = training.steps(workers).global_batch(workers)
    while not training.is_over and now_s < trace.end_s:
        job, asked_s = f"{number}", now_s
        queue.submit(job, nodes, limits.longest_s)
        while not queue.advance(now_s):
            now_s = max(queue.next_s, now_s)
            if now_s >= trace.end_s:
                break
        else:
            waits.append(now_s - asked_s)
            starts.append(now_s - trace.begin_s)
            points.append(RunPoint(now_s - trace.begin_s, nodes, workers, batch, 0.0))
            warmup_s = min(model.warmup_s, limits.longest_s)
            used_s = warmup_s + training.train(limits.longest_s - warmup_s, workers)
            node_hours += nodes * used_s / HOUR_S
            queue.advance(now_s + used_s)
            now_s += used_s
            points.append(RunPoint(now_s - trace.begin_s, 0, 0, 0.0, 0.0))
        queue.end(job)
        number += 1
    seconds = now_s - trace.begin_s if training.is_over else None
    return SimulatedRun(
        str(workers), seconds, training.share, node_hours, tuple(waits), 0, tuple(points), tuple(starts)
    )
