"""Cluster in virtual time, with nodes, a queue, users and an administrator; nothing happens unless time advances.

    >>> cluster = FakeCluster(nodes=2)
    >>> array = cluster.submit("#SBATCH --nodes=1", 3, "b1946ac9")
    >>> cluster.release(f"{array}_0")
    >>> cluster.advance(1.0)
    >>> cluster.jobs(array)[0].nodes, cluster.jobs(array)[1].phase
    (('node1',), <JobPhase.HELD: 'held'>)

A job takes whole nodes. Jobs start in the order of their nice values, then of their release; none overtakes another.
Methods that a user may call raise ``FakeRefusedError``, with the words of Slurm.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import final

from farandole.launch.leases.scheduler import JobPhase, JobView

DENIED = "Access/permission denied"
_ACTIVE = (JobPhase.RUNNING, JobPhase.SUSPENDED)
_PLACED = (*_ACTIVE, JobPhase.ENDING)


class FakeRefusedError(Exception):
    """Raised for forbidden calls; the text is the scheduler's message."""


@final
@dataclass
class _Job:
    number: str
    nonce: str
    size: int
    minutes: int
    phase: JobPhase = JobPhase.HELD
    nice: int = 0
    order: int = 0
    eligible_s: float = 0.0
    nodes: tuple[str, ...] = ()
    began_s: float = 0.0
    ends_s: float = 0.0


@final
@dataclass
class FakeCluster:
    """Nodes ``node1``, ``node2``... and their queue; fields may be changed at any time.

    ``start_s`` passes between the release of a job and its start on an idle node, ``ending_s`` between its end and the
    end of Slurm's work after it. ``most_jobs`` limits the submitted jobs of a user. ``refusals`` are the messages of
    refused calls, by name: ``{"submit": "Access/permission denied"}``. A cluster that ``is_away`` executes nothing, one
    that ``is_hanging`` executes calls, and neither answers.
    """

    nodes: int = 2
    now_s: float = 1e9
    start_s: float = 0.5
    ending_s: float = 1.0
    most_jobs: int = 10_000
    partitions: tuple[str, ...] = ("main",)
    refusals: dict[str, str] = field(default_factory=dict)
    is_away: bool = False
    is_hanging: bool = False
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _drained: dict[str, str] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _orders: Iterator[int] = field(default_factory=itertools.count)

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Advance the time, with all events in it."""
        until_s = self.now_s + seconds
        self._start_jobs()
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
            self._start_jobs()
        self.now_s = until_s

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` at that time."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._orders), action))

    # -- users --------------------------------------------------------------------------------------------------------

    def submit(self, script: str, count: int, nonce: str) -> str:
        """Submit held jobs; returns the number of their array. Only nodes, time and partition of the script count."""
        self._check("submit")
        partition = _option(script, "partition") or self.partitions[0]
        if partition not in self.partitions:
            raise FakeRefusedError(f"invalid partition specified: {partition}")
        if len([job for job in self._jobs.values() if job.phase is not JobPhase.GONE]) + count > self.most_jobs:
            raise FakeRefusedError("AssocMaxSubmitJobLimit")
        array = str(next(self._numbers))
        size, minutes = int(_option(script, "nodes") or 1), int(_option(script, "time") or 60)
        for index in range(count):
            self._jobs[f"{array}_{index}"] = _Job(f"{array}_{index}", nonce, size, minutes)
        return array

    def find(self, nonce: str) -> str:
        """The number of the array with a nonce, while one of its jobs exists; "" if there is none."""
        self._check("find")
        found = (job.number for job in self._jobs.values() if job.nonce == nonce and job.phase is not JobPhase.GONE)
        return next(found, "").partition("_")[0]

    def jobs(self, array: str) -> dict[int, JobView]:
        """The jobs of an array that are not gone, by index."""
        self._check("look")
        starts = dict(self._estimates())
        mine = [job for job in self._jobs.values() if job.number.partition("_")[0] == array]
        return {
            int(job.number.partition("_")[2]): _view(job, starts.get(job.number, 0.0))
            for job in mine
            if job.phase is not JobPhase.GONE
        }

    def drained(self, nodes: Collection[str]) -> dict[str, str]:
        """Nodes among these that are being drained, and the reasons."""
        self._check("look_at_nodes")
        return {node: reason for node, reason in self._drained.items() if node in nodes}

    def release(self, job: str) -> None:
        """Release a job that its user holds."""
        self._check("start")
        found = self._present(job)
        if found.phase is JobPhase.BARRED:
            raise FakeRefusedError(DENIED)
        if found.phase is JobPhase.HELD:
            found.phase, found.order, found.eligible_s = JobPhase.PENDING, next(self._orders), self.now_s + self.start_s
            self.at(found.eligible_s, lambda: None)

    def cancel(self, job: str) -> None:
        """Cancel a job, or all jobs of an array; running jobs end within ``ending_s``."""
        self._check("cancel")
        for found in [each for each in self._jobs.values() if job in (each.number, each.number.partition("_")[0])]:
            if found.phase in _ACTIVE:
                self._end(found)
            elif found.phase is not JobPhase.ENDING:
                found.phase = JobPhase.GONE

    def set_limit(self, job: str, minutes: int) -> None:
        """Set the time limit of a job; of a running job it can only be lowered."""
        self._check("set_limit")
        found = self._present(job)
        if found.phase in _PLACED:
            if minutes > found.minutes:
                raise FakeRefusedError(DENIED)
            self._limit(found, found.began_s + 60.0 * minutes)
        found.minutes = minutes

    def set_nice(self, job: str, nice: int) -> None:
        """Lower the priority of a waiting job."""
        self._check("set_nice")
        found = self._present(job)
        if found.phase in (JobPhase.HELD, JobPhase.BARRED):
            raise FakeRefusedError("it is held, and a change of Nice would release it")
        found.nice = nice

    # -- the administrator, and jobs themselves -----------------------------------------------------------------------

    def bar(self, job: str) -> None:
        """Hold a waiting job, so that its user cannot release it."""
        found = self._present(job)
        if found.phase in (JobPhase.HELD, JobPhase.PENDING):
            found.phase = JobPhase.BARRED

    def end(self, job: str) -> None:
        """Let a job end by itself."""
        self._end(self._present(job))

    def preempt(self, job: str, grace_s: float) -> None:
        """Take the nodes of a job when ``grace_s`` is over; its end is known at once."""
        self._limit(self._present(job), self.now_s + grace_s)

    def suspend(self, job: str) -> None:
        """Stop a job; its time limit goes on."""
        self._present(job).phase = JobPhase.SUSPENDED

    def resume(self, job: str) -> None:
        """Undo ``suspend``."""
        self._present(job).phase = JobPhase.RUNNING

    def drain(self, node: str, reason: str = "") -> None:
        """Start no more jobs on a node, until ``undrain``; running jobs go on."""
        self._drained[node] = reason

    def undrain(self, node: str) -> None:
        """Undo ``drain``."""
        self._drained.pop(node, None)
        self._start_jobs()

    def fail(self, node: str) -> None:
        """Lose a node, and at once the jobs on it."""
        self.drain(node)
        for job in self._jobs.values():
            if node in job.nodes:
                job.phase = JobPhase.GONE
        self._start_jobs()

    def occupy(self, nodes: int, minutes: int) -> str:
        """Submit a job of another user, which starts like others; returns its number."""
        array = str(next(self._numbers))
        job = _Job(f"{array}_0", "", nodes, minutes, JobPhase.PENDING, 0, next(self._orders), self.now_s)
        self._jobs[job.number] = job
        self._start_jobs()
        return job.number

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _check(self, call: str) -> None:
        if call in self.refusals:
            raise FakeRefusedError(self.refusals[call])

    def _present(self, job: str) -> _Job:
        found = self._jobs.get(job)
        if found is None:
            raise FakeRefusedError("Invalid job id specified")
        if found.phase is JobPhase.GONE:
            raise FakeRefusedError("Job has already finished")
        return found

    def _queue(self) -> list[_Job]:
        pending = [job for job in self._jobs.values() if job.phase is JobPhase.PENDING]
        return sorted(pending, key=lambda job: (job.nice, job.order))

    def _usable(self) -> list[str]:
        every = (f"node{i}" for i in range(1, self.nodes + 1))
        return [node for node in every if node not in self._drained]

    def _start_jobs(self) -> None:
        busy = {node for job in self._jobs.values() if job.phase in _PLACED for node in job.nodes}
        idle = [node for node in self._usable() if node not in busy]
        for job in self._queue():
            if job.eligible_s > self.now_s or job.size > len(idle):
                return
            job.nodes, idle = tuple(idle[: job.size]), idle[job.size :]
            job.phase, job.began_s = JobPhase.RUNNING, self.now_s
            self._limit(job, self.now_s + 60.0 * job.minutes)

    def _limit(self, job: _Job, ends_s: float) -> None:
        job.ends_s = ends_s
        self.at(ends_s, lambda: self._end(job) if job.ends_s == ends_s and job.phase in _ACTIVE else None)

    def _end(self, job: _Job) -> None:
        def leave() -> None:
            job.phase = JobPhase.GONE

        job.phase, job.ends_s = JobPhase.ENDING, self.now_s
        self.at(self.now_s + self.ending_s, leave)

    def _estimates(self) -> Iterator[tuple[str, float]]:
        """Pending jobs, and the time at which each starts if all others use their whole time limits."""
        usable = self._usable()
        free = dict.fromkeys(usable, self.now_s)
        for job in self._jobs.values():
            if job.phase in _PLACED:
                free.update((node, job.ends_s) for node in job.nodes if node in free)
        for job in self._queue():
            if job.size <= len(usable):
                nodes = sorted(usable, key=lambda node: free[node])[: job.size]
                starts_s = max(free[node] for node in nodes)
                free.update(dict.fromkeys(nodes, starts_s + 60.0 * job.minutes))
                yield job.number, starts_s


def _view(job: _Job, starts_s: float) -> JobView:
    if job.phase in _PLACED:
        return JobView(job.phase, job.nodes, 0.0, job.ends_s, began_s=job.began_s)
    reasons = {JobPhase.HELD: "JobHeldUser", JobPhase.BARRED: "JobHeldAdmin", JobPhase.PENDING: "Resources"}
    return JobView(job.phase, (), starts_s, 0.0, reasons[job.phase])


def _option(script: str, name: str) -> str:
    match = re.search(rf"^#SBATCH --{name}=(\S+)", script, re.MULTILINE)
    return match[1] if match else ""
