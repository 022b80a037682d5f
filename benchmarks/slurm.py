"""Leases on a real Slurm of four nodes, all on this machine: what joining, leaving and preemption cost.

The others' pause is the longest step around a change less the median step. A warm-up is what a new worker takes until
its model is built; several of them share this machine's cores with those that train.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from benchmarks.measure import Row, Sample, Table, Verdict
from workbench.cluster import URGENT, SlurmCluster, UnavailableError

SCRIPT = Path(__file__).parent / "slurm_rank.py"
POLICY = "opposite-s = 0.0\nlook-pending-s = 1.0\n"
DEADLINE_S = 120.0
AROUND_S = 3.0
"""Steps so near to a change count as those around it."""


def run(quick: bool) -> list[Table]:
    """The table of this section; one that says why, where this machine cannot have a Slurm."""
    try:
        with SlurmCluster(4) as slurm, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return [_measured(_LeasedRun(slurm, Path(folder)), 1 if quick else 5)]
    except UnavailableError as error:
        return [Table(f"Leases: skipped. {error}", "")]


def _measured(training: _LeasedRun, rounds: int) -> Table:
    training.begin()
    found: dict[str, list[float]] = {}

    def note(what: str, value: float) -> None:
        found.setdefault(what, []).append(value)

    for _ in range(rounds):
        asked_s = training.scale(2)
        grown_s = training.until_size(2)
        note("from the order to the first larger step", grown_s - asked_s)
        note("pause of the others: join", training.pause_s(grown_s))
        told_s, ran_s = training.preempt()
        left_s = training.until_size(1)
        note("until who preempts a lease runs", ran_s - told_s)
        note("pause of the others: SIGTERM", training.pause_s(left_s))
        training.free()
        training.scale(2)
        training.until_size(2)
        training.scale(1)
        left_s = training.until_size(1)
        note("pause of the others: leave by announcement", training.pause_s(left_s))
    training.end()
    warm_up_s = training.warm_up_s()
    most = {
        "from the order to the first larger step": 1.0 + warm_up_s,
        "until who preempts a lease runs": 3.0,
    }
    rows = []
    for what, values in found.items():
        sample = Sample.of(values)
        verdict = Verdict(sample.median, "s", most=round(most.get(what, 0.3), 2))
        rows.append(Row(what, {"farandole": sample}, (verdict,)))
    return Table(f"Leases on a Slurm of 4 nodes; a worker warms up in {warm_up_s:.1f} s", "s", rows=rows)


@final
class _LeasedRun:
    """One run, in a folder that all hosts see."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self._slurm, self._folder, self._run = slurm, folder, folder / "run"
        self._urgent = ""

    def begin(self) -> None:
        """Submit it, and wait for its first step."""
        self._folder.chmod(0o700)
        (self._folder / "policy.toml").write_text(POLICY)
        sizes = ("--min-np", "1", "--max-np", "3", "--lease", "1x1@1h", "--leases", "32")
        how = ("--policy", "policy.toml", "--run-folder", str(self._run), "--sbatch=--exclusive", "-o", "lead.out")
        self._farandole("submit", *sizes, *how, "--start-timeout", "60", sys.executable, str(SCRIPT))
        self.until_size(1)

    def scale(self, size: int) -> float:
        """Order a size; returns the time of the order."""
        begin_s = time.monotonic()
        self._farandole("scale", str(self._run), str(size))
        return begin_s

    def until_size(self, size: int) -> float:
        """Wait until a step has this size; returns the time of the first one of that run of steps."""
        self._until(lambda: bool(self._steps()) and self._steps()[-1][1] == size, f"for {size} workers")
        steps = self._steps()
        other = max((i for i, each in enumerate(steps) if each[1] != size), default=-1)
        return steps[other + 1][0]

    def pause_s(self, changed_s: float) -> float:
        """The longest step around a change, less the median one."""
        self._until(lambda: self._steps()[-1][0] > changed_s + AROUND_S, "for steps after a change")
        at_s = [at_s for at_s, _ in self._steps() if abs(at_s - changed_s) <= AROUND_S]
        gaps = [after_s - before_s for before_s, after_s in itertools.pairwise(at_s)]
        return max(gaps) - statistics.median(gaps)

    def preempt(self) -> tuple[float, float]:
        """Submit a job that takes the node of a lease; returns when that was asked for, and when it ran."""
        node = self._slurm.run(
            ["squeue", "--noheader", "--states=RUNNING", "--name=fdl-run", "--format=%N"]
        ).stdout.split()[0]
        mark = self._folder / f"urgent-{time.monotonic_ns()}"
        command = ["sbatch", "--parsable", f"--partition={URGENT}", f"--nodelist={node}", "--exclusive"]
        self._farandole("hold", str(self._run))  # else a successor comes at once, as it should
        begin_s = time.monotonic()
        words = [*command, "--output=/dev/null", f"--wrap=touch {mark}; sleep 600"]
        self._urgent = self._slurm.run(words, cwd=self._folder).stdout.strip()
        self._until(mark.exists, "for who preempts")
        return begin_s, time.monotonic()

    def free(self) -> None:
        """End the job that has preempted, and the hold."""
        self._farandole("release", str(self._run))
        self._slurm.run(["scancel", self._urgent])

    def end(self) -> None:
        """Have the training end by itself."""
        (self._folder / "end").touch()
        self._until(lambda: "lead" not in self._slurm.run(["squeue", "--format=%j"]).stdout, "for the end")

    def warm_up_s(self) -> float:
        """The median time in which a worker was ready."""
        return statistics.median(map(float, (self._folder / "warm_ups.txt").read_text().split()))

    def _steps(self) -> list[tuple[float, int]]:
        path = self._folder / "steps.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines if len(line.split()) == 2]

    def _farandole(self, *words: str) -> None:
        self._slurm.run([sys.executable, "-m", "farandole", *words], cwd=self._folder)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > until_s:
                said = (self._folder / "lead.out").read_text()[-2000:]
                raise RuntimeError(f"waited in vain {what}\n{said}")
            time.sleep(0.02)
