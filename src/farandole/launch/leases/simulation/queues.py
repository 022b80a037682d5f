"""Queues of a simulated cluster: they decide when a released lease starts.

    queue = Holes(trace)                        # or Backfill(trace)
    queue.submit("812_0", nodes=1, length_s=3600.0)
    for job in queue.advance(to_s): ...         # jobs that start then
    queue.end("812_0")

``advance`` returns no jobs of the trace. A lease that is not ended by ``end`` keeps its nodes until its time limit.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from operator import itemgetter
from typing import NamedTuple, final

from farandole.launch.leases.simulation.trace import Trace

DEPTH = 100
"""Number of waiting jobs considered for backfill, as in Slurm."""

OTHERS = "trace "
"""Prefix of the names of jobs of the trace."""


class SimulatedQueue(ABC):
    """Queue of a cluster in virtual time; ``now_s``: its current time."""

    def __init__(self, trace: Trace, now_s: float) -> None:
        self.trace = trace
        self.now_s = now_s

    @abstractmethod
    def submit(self, job: str, nodes: int, length_s: float) -> None:
        """Queue a job that needs ``nodes`` for ``length_s``."""

    @abstractmethod
    def end(self, job: str) -> None:
        """End a job, or cancel it while it waits."""

    @abstractmethod
    def advance(self, to_s: float) -> list[str]:
        """Advance to ``to_s``, at most ``next_s``; return the jobs that start then."""

    @property
    @abstractmethod
    def next_s(self) -> float:
        """Next time at which a waiting job may start; infinite if none waits."""


@final
class Holes(SimulatedQueue):
    """Jobs of the trace start and end as recorded; a lease gets nodes that no other job needs before its time limit.

    This favours leases compared with a scheduler, which knows time limits but not ends; but no lease may delay others.
    """

    def __init__(self, trace: Trace, now_s: float) -> None:
        super().__init__(trace, now_s)
        changes: dict[float, int] = {-math.inf: 0}
        for job in trace.jobs:
            changes[job.start_s] = changes.get(job.start_s, 0) - job.nodes
            changes[job.end_s] = changes.get(job.end_s, 0) + job.nodes
        self._times = sorted(changes)
        self._free: list[int] = []
        free = trace.nodes
        for at_s in self._times:
            free += changes[at_s]
            self._free.append(free)
        self._waiting: dict[str, tuple[int, float]] = {}
        self._running: dict[str, tuple[int, float]] = {}
        self._is_stale = False

    def submit(self, job: str, nodes: int, length_s: float) -> None:
        self._waiting[job] = (nodes, length_s)
        self._is_stale = True

    def end(self, job: str) -> None:
        self._waiting.pop(job, None)
        self._running.pop(job, None)
        self._is_stale = True

    def advance(self, to_s: float) -> list[str]:
        self.now_s, self._is_stale = to_s, False
        self._running = {job: held for job, held in self._running.items() if held[1] > to_s}
        started = []
        for job, (nodes, length_s) in list(self._waiting.items()):
            ours = sum(held for held, _ in self._running.values())
            if self._least_free(length_s) - ours >= nodes:
                del self._waiting[job]
                self._running[job] = (nodes, to_s + length_s)
                started.append(job)
        return started

    def _least_free(self, length_s: float) -> int:
        """The fewest nodes that the trace leaves free during the next ``length_s``."""
        first, last = bisect_right(self._times, self.now_s), bisect_right(self._times, self.now_s + length_s)
        return min(self._free[first - 1 : max(last, first)])

    @property
    def next_s(self) -> float:
        if not self._waiting:
            return math.inf
        if self._is_stale:
            return self.now_s
        following = bisect_right(self._times, self.now_s)
        others_s = self._times[following] if following < len(self._times) else math.inf
        return min([others_s, *(ends_s for _, ends_s in self._running.values() if ends_s > self.now_s)])


@final
class WaitingJob(NamedTuple):
    """Waiting job: it will run for ``run_s``, of which the scheduler only knows the bound ``limit_s``."""

    job: str
    nodes: int
    limit_s: float
    run_s: float


@final
class Backfill(SimulatedQueue):
    """All jobs wait in one queue with EASY backfill (Lifka 1995), as if the leases had been submitted then.

    The first job that does not fit gets a reservation for the time when enough running jobs must have ended; later jobs
    may start before it if they do not delay it. Jobs of the trace that need more nodes than exist are skipped.
    """

    def __init__(self, trace: Trace, now_s: float) -> None:
        super().__init__(trace, now_s)
        self._arrivals = [job for job in trace.jobs if job.nodes <= trace.nodes]
        self._arrived = 0
        self._free = trace.nodes
        self._line: list[WaitingJob] = []
        self._ends: list[tuple[float, str]] = []
        self._running: dict[str, tuple[int, float]] = {}
        self._started: list[str] = []
        self._is_stale = False
        self._starts: dict[int, float] = {}
        self._advance_to(now_s)

    def submit(self, job: str, nodes: int, length_s: float) -> None:
        self._line.append(WaitingJob(job, nodes, length_s, length_s))
        self._is_stale = True

    def end(self, job: str) -> None:
        if job in self._running:
            self._finish(job)
        else:
            self._line = [waiting for waiting in self._line if waiting.job != job]
        self._is_stale = True

    def advance(self, to_s: float) -> list[str]:
        self._started = []
        self._advance_to(to_s)
        return self._started

    @property
    def next_s(self) -> float:
        if self._is_stale:
            return self.now_s
        return self._next_event_s() if self._ours() else math.inf

    def starts(self) -> dict[int, float]:
        """Advance to the end of the trace; return the start time of each of its jobs, by index."""
        self._advance_to(math.inf)
        return self._starts

    def _ours(self) -> bool:
        return any(not waiting.job.startswith(OTHERS) for waiting in self._line)

    def _next_event_s(self) -> float:
        arrival_s = self._arrivals[self._arrived].submit_s if self._arrived < len(self._arrivals) else math.inf
        return min(arrival_s, self._ends[0][0] if self._ends else math.inf)

    def _advance_to(self, to_s: float) -> None:
        if self._is_stale:
            self._schedule()
        while (event_s := self._next_event_s()) <= to_s and event_s < math.inf:
            self.now_s = event_s
            while self._ends and self._ends[0][0] <= event_s:
                self._finish(heapq.heappop(self._ends)[1])
            while self._arrived < len(self._arrivals) and self._arrivals[self._arrived].submit_s <= event_s:
                came = self._arrivals[self._arrived]
                waiting = WaitingJob(f"{OTHERS}{self._arrived}", came.nodes, came.limit_s, came.end_s - came.start_s)
                self._line.append(waiting)
                self._arrived += 1
            self._schedule()
        self.now_s = to_s

    def _finish(self, job: str) -> None:
        self._free += self._running.pop(job, (0, 0.0))[0]  # 0: already ended by ``end``

    def _start(self, waiting: WaitingJob) -> None:
        self._free -= waiting.nodes
        self._running[waiting.job] = (waiting.nodes, self.now_s + waiting.limit_s)
        heapq.heappush(self._ends, (self.now_s + waiting.run_s, waiting.job))
        if waiting.job.startswith(OTHERS):
            self._starts[int(waiting.job.removeprefix(OTHERS))] = self.now_s
        else:
            self._started.append(waiting.job)

    def _schedule(self) -> None:
        """Start all jobs that can start now."""
        self._is_stale = False
        line = self._line
        first = 0
        while first < len(line) and line[first].nodes <= self._free:
            self._start(line[first])
            first += 1
        self._line = line = line[first:]
        if not line or not self._free:
            return
        shadow_s, spare = self._reservation(line[0].nodes)
        passing = []
        for waiting in line[1 : DEPTH + 1]:
            ends_in_time = self.now_s + waiting.limit_s <= shadow_s
            if waiting.nodes <= self._free and (ends_in_time or waiting.nodes <= spare):
                spare -= 0 if ends_in_time else waiting.nodes
                self._start(waiting)
                passing.append(waiting)
        if passing:
            passed = {waiting.job for waiting in passing}
            self._line = [waiting for waiting in line if waiting.job not in passed]

    def _reservation(self, nodes: int) -> tuple[float, int]:
        """Latest start time of the first waiting job, and the nodes that are then left over."""
        free = self._free
        for held, ends_s in sorted(self._running.values(), key=itemgetter(1)):
            free += held
            if free >= nodes:
                return ends_s, free - nodes
        return math.inf, 0
