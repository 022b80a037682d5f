"""Elastic job of the training script, on the side of the test that runs it.

with TraineeJob(folder, {"localhost": 4}, TrainingPlan()) as job:
    job.until_whole()
    ...
    assert job.finish() == 0

Processes: the test, with one thread; its child, the launcher with the controller; and workers below it, perhaps on
other hosts. The test gets its information from files in one folder that all share, and from the launcher's exit. So all
of it is of the past: between two reads workers may exit, and the next generation begin.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import msgspec

from workbench.cluster import HEAD, Cluster
from workbench.controllers import FAILED, fail_controller, launcher_below
from workbench.survival.records import SCRIPTS, Applied, GenerationRecord, Point, Skipped, TrainingPlan

DEADLINE_S = 120.0
OPTIONS = (
    *("--min-np", "2", "--blacklist-cooldown-range", "0", "0.3", "--stall-check-warning-time-seconds", "0.5"),
    *("--start-timeout", "120"),  # many processes import torch at once, perhaps on a busy machine
)

Hosts: TypeAlias = Mapping[str, int]


class JobLostError(Exception):
    """The job did not do what it should, in time."""


@final
class TraineeJob:
    """``farandole run`` of the trainee on ``hosts``, here or, given a ``cluster``, from its head.

    With ``inside``, a command that gets an allocation from Slurm, ``hosts`` are the hosts of the allocation.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Hosts,
        plan: TrainingPlan,
        cluster: Cluster | None = None,
        inside: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self.cluster = folder, cluster
        self.hosts = dict(hosts)
        self.offer(hosts)
        command = [*inside, sys.executable, "-m", "workbench.controllers", "run", *OPTIONS]
        command += [] if inside else ["--hostfile", str(folder / "hosts")]
        command += ["--elastic-journal", str(folder / "journal"), *options]
        command += [sys.executable, "-m", SCRIPTS[plan.framework], str(folder)]
        command += [msgspec.json.encode(plan).decode()]
        environment = {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": plan.backend}
        with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
            start: Callable[..., Any] = subprocess.Popen
            if cluster is not None:
                start = lambda *words, **how: cluster.popen(HEAD, *words, **how)  # noqa: E731
            else:
                environment = {**os.environ, **environment}
            self.process = start(command, env=environment, cwd=folder, stdout=out, stderr=err)
        self._generations = _Tail(folder, "generations", GenerationRecord)
        self._skipped = _Tail(folder, "skipped", Skipped)

    def __enter__(self) -> TraineeJob:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # not SIGKILL yet: the launcher has to end its agents and workers
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(DEADLINE_S)

    def offer(self, hosts: Hosts) -> None:
        """Offer these hosts to the job from now on."""
        new = self.folder / "hosts.new"
        new.write_text("".join(f"{host} slots={number}\n" for host, number in hosts.items()))
        new.rename(self.folder / "hosts")  # the launcher may read it at any moment, and must not see half of it

    # -- state of the job ----------------------------------------------------------------------------------------------

    def generation_records(self) -> list[GenerationRecord]:
        """Workers that have begun to train: one record for each worker and generation."""
        return self._generations.read()

    def generation(self) -> list[GenerationRecord]:
        """Members of the latest generation, by rank; [] until all of them train."""
        found = self.generation_records()
        last = max((each.generation for each in found), default=0)
        own = sorted((each for each in found if each.generation == last), key=lambda each: each.rank)
        return own if own and len(own) == own[0].size else []

    def skipped(self) -> list[Skipped]:
        """The steps that workers have skipped."""
        return self._skipped.read()

    def decided(self, action: str) -> int:
        """Number of decisions of the membership for this action, by its journal."""
        return (self.folder / "journal").read_text().count(f'"type":"{action}"')

    def fail_controller(self) -> None:
        """Let the controller fail, and wait until another one takes over."""
        failures = self.errors.count(FAILED)
        fail_controller(self.launcher())
        self.until(lambda: self.errors.count(FAILED) > failures, "another controller")

    def launcher(self) -> int:
        """The process number of the launcher."""
        return launcher_below(self.process.pid)

    @property
    def errors(self) -> str:
        """Standard error of the launcher and the workers until now."""
        return (self.folder / "err.txt").read_text()

    # -- waits ---------------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait for ``condition``; raise ``JobLostError`` if that takes too long, or the job ends before."""
        deadline = time.monotonic() + deadline_s
        while not condition():
            is_over = self.process.poll() is not None
            # Check again after the end: the last action of the job may have followed the first check.
            if (is_over and not condition()) or time.monotonic() > deadline:
                ending = f"it ended with {self.process.returncode}" if is_over else f"not in {deadline_s:g} s"
                raise JobLostError(f"{what}: {ending}\n{self.errors[-3000:]}")
            time.sleep(0.01)  # files are all that reaches other hosts

    def until_whole(self, size: int = 0, after: int = 0) -> list[GenerationRecord]:
        """Wait for a generation of so many ranks (default: all slots), later than ``after``; returns it."""
        size = size or sum(self.hosts.values())
        found: list[GenerationRecord] = []

        def is_whole() -> bool:
            found[:] = self.generation()
            return len(found) == size and found[0].generation > after

        self.until(is_whole, f"a generation of {size} after {after}")
        return list(found)

    def until_steps(self, number: int) -> None:
        """Wait for so many more points of the curve."""
        size = self.curve_bytes()
        self.until(lambda: self.curve_bytes() > size + 40 * number, "more steps")

    def curve_bytes(self) -> int:
        """Size of the workers' files of the loss curve."""
        return sum(path.stat().st_size for path in self.folder.glob("curve-*"))

    def finish(self) -> int:
        """Let the job end with this epoch; returns its exit status."""
        (self.folder / "end").touch()
        self.until(lambda: self.process.poll() is not None, "the end")
        code = int(self.process.returncode)
        return code if code >= 0 else 128 - code

    def applied(self) -> list[Applied]:
        """Records of how often each sample was applied, from the workers that reached the end."""
        found: list[Applied] = _Tail(self.folder, "applied", Applied).read()
        return found

    def curve(self) -> dict[int, set[Point]]:
        """Points of the loss curve, by step: a single one if the workers agree."""
        found: dict[int, set[Point]] = {}
        for point in _Tail(self.folder, "curve", Point).read():
            found.setdefault(point.step, set()).add(point)
        return found


@final
class _Tail:
    """Records that workers append to files of their own, in the order in which they were found."""

    def __init__(self, folder: Path, what: str, kind: Any) -> None:
        self._folder, self._what = folder, what
        self._decode = msgspec.json.Decoder(kind).decode
        self._offsets: dict[Path, int] = {}
        self._found: list[Any] = []

    def read(self) -> list[Any]:
        for path in self._folder.glob(f"{self._what}-*.jsonl"):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                whole = file.read().rpartition(b"\n")[0]  # a line may be incomplete, or cut off by its writer's death
            if whole:
                self._offsets[path] = offset + len(whole) + 1
                self._found += [self._decode(line) for line in whole.splitlines()]
        return self._found
