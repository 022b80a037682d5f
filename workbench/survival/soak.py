"""Random faults for minutes, and many changes of the workers: nothing may be lost, and no use of resources may grow.

    report = soak(folder, seconds=120, seed=1, virtual=6)
    assert not report.wrong

The seed decides the faults and their times. Afterwards one process trains alone for as many steps: the loss curve is
the same, to the bit with virtual workers.

Processes: this one, with one thread, disturbs a job that runs by itself. The job goes on between an observation and the
fault that follows from it: the victim may have exited, or the next generation begun. So a fault whose victim has exited
does nothing; a victim is noted before its signal is sent; and a fault is drawn only when all members of the latest
generation train, and none of them was hit before, because one worker with the state of the job must be left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import final

import msgspec

from farandole.events import Recovery
from farandole.testing.ledger import read
from workbench.cluster import Cluster, ClusterError
from workbench.survival.job import JobLostError, TraineeJob
from workbench.survival.records import LENGTH, GenerationRecord, Point, TrainingPlan

EVERY_S = 5.0
LONGEST_S = 90.0
"""Limit of the time without a fault; most of a job's recovery is the wait for new workers."""

HOSTS = {"node1": 2, "node2": 2}
LOST_HOST, OF_HOSTS = "node2", ("cable", "power", "freeze")
"""The host that is hit as a whole, and the kinds of faults that do so."""
ALONE_S = 900.0
_SIGNAL = """
import os, signal, sys
pid, number, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
held = os.pidfd_open(pid)
if folder not in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0"):
    sys.exit(f"process {pid} is no worker any more")
signal.pidfd_send_signal(held, number)
"""
"""Program that signals a worker of this job on its host, and no process that reuses its number."""

_TOTAL_S: Callable[[Recovery], float] = attrgetter("total_s")


@final
@dataclass
class SoakReport:
    """Result of a soak; ``wrong`` is empty if all promises were kept."""

    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    steps: int = 0
    seconds: float = 0.0
    recoveries: list[float] = field(default_factory=list)
    slowest: str = ""

    def text(self) -> str:
        """The report in a few readable lines."""
        lines = [
            f"{self.seconds:.0f} s: {self.steps} steps in {self.generations} generations",
            "faults: " + (", ".join(f"{number} {what}" for what, number in self.faults.most_common()) or "none"),
        ]
        if self.recoveries:
            mean, median, most = (of(self.recoveries) for of in (statistics.fmean, statistics.median, max))
            lines.append(f"to the next step: mean {mean:.3f} s, median {median:.3f} s, most {most:.3f} s")
            lines.append(f"the slowest: {self.slowest}")
        return "\n".join([*lines, *(f"WRONG: {wrong}" for wrong in self.wrong)])


@final
class _Chaos:
    """Random faults, joins and leaves of a job on two hosts."""

    def __init__(self, job: TraineeJob, cluster: Cluster, seed: int) -> None:
        self._job, self._cluster = job, cluster
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self.faults: Counter[str] = Counter()
        self.victims: set[str] = set()
        """Workers that a fault has hit, by ``who()``."""
        self.released: Counter[str] = Counter()
        """Slots that were taken away, by host: so many workers had to leave, too."""
        self._offered = dict(HOSTS)
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[str, tuple[int, Callable[[], object]]] = {
            "SIGKILL": (6, lambda: self._signal(signal.SIGKILL, 1)),
            "SIGKILL of two": (2, lambda: self._signal(signal.SIGKILL, 2)),
            "SIGSEGV": (1, lambda: self._signal(signal.SIGSEGV, 1)),
            "SIGSTOP": (1, lambda: self._signal(signal.SIGSTOP, 1)),
            "an error in the controller": (1, job.fail_controller),
            "leave": (2, lambda: self._resize(-1)),
            "join": (2, lambda: self._resize(1)),
            "cable": (1, lambda: self._host(cluster.cut, cluster.heal)),
            "power": (1, lambda: self._host(cluster.kill, cluster.boot)),
            "freeze": (1, lambda: self._host(cluster.freeze, cluster.thaw)),
        }

    def go_on(self, seconds: float) -> None:
        """Inject a fault about every ``EVERY_S``, but not before recovery from the last; undo everything in the end."""
        next_s = last_s = time.monotonic()
        end_s = last_s + seconds
        while (now := time.monotonic()) < end_s:
            if now >= next_s and not self._undo and (holders := self._holders()):
                last_s, next_s = now, now + self._random.expovariate(1 / EVERY_S)
                [name] = self._random.choices(*self._choice(holders))
                self.faults[name] += 1
                with contextlib.suppress(ClusterError, ProcessLookupError):  # its victim has just exited
                    self._kinds[name][1]()
            self._undo_due(now)
            if now > last_s + LONGEST_S:
                raise JobLostError(
                    f"for {LONGEST_S:g} s there was nobody that a fault could hit\n{self._job.errors[-3000:]}"
                )
            if self._job.process.poll() is not None:
                raise JobLostError(f"the job has ended with {self._job.process.returncode}\n{self._job.errors[-3000:]}")
            time.sleep(0.05)
        self._undo_due(float("inf"))
        self._offer(HOSTS)

    def _holders(self) -> list[GenerationRecord]:
        """Members that have the state and stay, if none is missing; else [], because others may be its only holders."""
        members = self._job.generation()
        # A generation with a victim in it does not count, even if all of it have begun: its end may be under way.
        last_fault = max(
            (each.generation for each in self._job.generation_records() if each.worker in self.victims), default=0
        )
        taken = Counter(_host_of(each.worker) for each in members)
        is_settled = all(number <= self._offered[host] for host, number in taken.items())
        return members if is_settled and members and members[0].generation > last_fault else []

    def _choice(self, holders: list[GenerationRecord]) -> tuple[list[str], list[int]]:
        """The kinds of faults that leave one of the holders, with their weights."""
        is_spread = any(_host_of(each.worker) != LOST_HOST for each in holders)
        names = [name for name in self._kinds if is_spread or name not in OF_HOSTS]
        return names, [self._kinds[name][0] for name in names]

    def _undo_due(self, now: float) -> None:
        for each in [each for each in self._undo if each[0] <= now]:
            self._undo.remove(each)
            each[1]()

    def _signal(self, number: int, count: int) -> None:
        members = self._job.generation()
        for victim in self._random.sample(members, min(count, len(members) - 1)):
            self.victims.add(victim.worker)  # before: a signal whose command fails may have arrived
            # Not by ``kill``: the victim may have exited, and its number be reused. The number is checked while its
            # pidfd is held, and only a process of the training script is hit.
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _SIGNAL,
                str(victim.pid),
                str(int(number)),
                str(self._job.folder),
            ]
            self._cluster.run(_host_of(victim.worker), command)

    def _resize(self, change: int) -> None:
        host = self._random.choice(list(HOSTS))
        self._offer({**HOSTS, host: HOSTS[host] + change})

    def _offer(self, hosts: dict[str, int]) -> None:
        for host, slots in self._offered.items():
            self.released[host] += max(0, slots - hosts[host])
        self._offered = dict(hosts)
        self._job.offer(hosts)

    def _host(self, do: Callable[[str], object], undo: Callable[[str], object]) -> None:
        do(LOST_HOST)
        self._inject_host(LOST_HOST)  # after it: a worker that began before is hit, too
        until_s = time.monotonic() + self._random.uniform(1, 10)
        self._undo.append((until_s, lambda: self._restore(LOST_HOST, undo)))

    def _restore(self, host: str, undo: Callable[[str], object]) -> None:
        self._inject_host(host)  # again, for records that arrived since; before any worker can start anew
        undo(host)

    def _inject_host(self, host: str) -> None:
        """Note all workers as hit that have started on a host so far."""
        self.victims |= {each.worker for each in self._job.generation_records() if _host_of(each.worker) == host}


def _host_of(worker: str) -> str:
    return worker.rpartition("-")[0]


def soak(folder: Path, seconds: float, seed: int, virtual: int) -> SoakReport:
    """Train on two hosts, with faults from ``seed``; ``virtual`` workers, or 0 for the normal mode."""
    begin_s = time.monotonic()
    report = SoakReport()
    plan = TrainingPlan(virtual=virtual, step_s=0.01)
    with Cluster(2) as cluster, TraineeJob(folder, HOSTS, plan, cluster) as job:
        job.until_whole()
        chaos = _Chaos(job, cluster, seed)
        try:
            chaos.go_on(seconds)
            job.until_whole()
            code = job.finish()
            report.wrong += [f"it ended with {code}"] if code else []
        except JobLostError as error:
            report.wrong.append(str(error))
        report.faults, report.seconds = chaos.faults, time.monotonic() - begin_s
        _judge(report, job)
        report.wrong += strangers(job.generation_records(), chaos.victims, chaos.released)
        _compare(report, job.curve(), alone(folder / "alone", virtual, report.steps), bits=bool(virtual))
    return report


def reforms(folder: Path, number: int) -> SoakReport:
    """Have four workers of one host re-form ``number`` times, without a loss."""
    begin_s = time.monotonic()
    report = SoakReport()
    with TraineeJob(folder, {"localhost": 4}, TrainingPlan(step_s=0, reform_every=3)) as job:
        try:
            job.until(
                lambda: max((b.generation for b in job.generation_records()), default=0) > number,
                "re-forming",
                number + 120,
            )
            code = job.finish()
            report.wrong += [f"it ended with {code}"] if code else []
        except JobLostError as error:
            report.wrong.append(str(error))
        report.seconds = time.monotonic() - begin_s
        _judge(report, job)
        report.wrong += strangers(job.generation_records(), set(), Counter())
    return report


def alone(folder: Path, virtual: int, steps: int) -> dict[int, Point]:
    """The loss curve of one process that trains alone."""
    folder.mkdir()
    command = [sys.executable, "-m", "workbench.survival.training_script", str(folder)]
    command += [msgspec.json.encode(TrainingPlan(virtual=virtual, step_s=0, steps=steps)).decode()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ALONE_S, check=False)
    if done.returncode:
        raise JobLostError(f"the process that trains alone: {done.stderr}")
    decode = msgspec.json.Decoder(Point).decode
    points = [decode(line) for path in folder.glob("curve-*") for line in path.read_bytes().splitlines()]
    return {point.step: point for point in points}


def _judge(report: SoakReport, job: TraineeJob) -> None:
    history = read(job.folder)
    report.generations, report.steps = max(history.begun, default=0), max(history.steps, default=-1) + 1
    epochs = 1 + max(history.samples(), default=-1)
    report.wrong += history.problems(LENGTH, epochs)
    slowest = [max(records, key=_TOTAL_S) for records in history.recovered.values()]
    report.recoveries = [record.total_s for record in slowest]
    report.slowest = max(slowest, key=_TOTAL_S).text if slowest else ""
    report.wrong += growth(job.generation_records())


def strangers(records: Sequence[GenerationRecord], victims: set[str], released: Mapping[str, int]) -> list[str]:
    """Breaches of P1: every worker stays a member, unless a fault has hit it or its slot was taken away."""
    last = max((each.generation for each in records), default=0)
    members = {each.worker for each in records if each.generation == last}
    gone = {each.worker for each in records} - members - victims
    by_host = {host: sorted(each for each in gone if _host_of(each) == host) for host in map(_host_of, gone)}
    return [
        f"{', '.join(workers)} ended, and no fault has hit them; {released.get(host, 0)} had to leave {host}"
        for host, workers in by_host.items()
        if len(workers) > released.get(host, 0)
    ]


def growth(records: Sequence[GenerationRecord]) -> list[str]:
    """Breaches of P7: a long-lived worker holds more at the end than in its second quarter."""
    found = []
    for worker in {each.worker for each in records}:
        own = sorted((each for each in records if each.worker == worker), key=lambda each: each.generation)
        if len(own) < 24:
            continue
        early, late = own[len(own) // 4 : len(own) // 2], own[-len(own) // 4 :]
        for what in ("descriptors", "threads"):
            before, after = (max(getattr(each, what) for each in some) for some in (early, late))
            if after > before:
                found.append(f"{worker} had {before} {what} at first and {after} in the end, in {len(own)} generations")
        before_kb, after_kb = (statistics.median(each.resident_kb for each in some) for some in (early, late))
        if after_kb > before_kb + max(4096, 4 * len(own)):
            found.append(f"{worker} held {before_kb} KiB at first and {after_kb} in the end: {len(own)} generations")
    return found


def _compare(report: SoakReport, curve: dict[int, set[Point]], truth: dict[int, Point], bits: bool) -> None:
    if not curve or set(curve) - set(truth):
        report.wrong.append(f"points at steps {sorted(set(curve) - set(truth))[:9]} of {len(curve)} are in no curve")
    for step, points in sorted(curve.items()):
        expected = truth.get(step)
        if expected is None:
            continue
        off = [p for p in points if (p != expected if bits else abs(p.loss - expected.loss) > 1e-6 * expected.loss)]
        if off or (bits and len(points) > 1):
            report.wrong.append(f"step {step}: {sorted(points, key=str)}, and alone {expected}")
            return
