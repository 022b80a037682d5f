"""A run with leases on a real Slurm, watched: ``run.submit()``, ``run.scale(3)``, ``run.generation(3)``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import pytest

from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.journal import LeaseRecord, read_records
from tests.support.paths import SUPPORT
from workbench.cluster import SlurmCluster

WORKER = SUPPORT / "elastic_worker.py"
TRAINS = re.compile(r"worker (\d+) trains: generation (\d+), rank (\d+) of (\d+), step (\d+)")
DEADLINE_S = 180.0
POLICY = "look-pending-s = 1.0\nlook-s = 5.0\nleave-s = 8.0\nopposite-s = 1.0\n"


@final
class Run:
    """A run that was submitted from the head, in a folder that all hosts see."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder, self.path = slurm, folder, folder / "run"
        (folder / "policy.toml").write_text(POLICY)

    def submit(
        self,
        *options: str,
        lease: str = "1x1@1h",
        most: int = 4,
        command: Sequence[str] = (sys.executable, str(WORKER)),
    ) -> None:
        """Submit a lead of one worker, and leases."""
        sizes = ("--min-np", "1", "--max-np", str(most), "--lease", lease, "--run-folder", str(self.path))
        quick = (
            "-o",
            "lead.out",
            "--sbatch=--exclusive",
            "--start-timeout",
            "60",
            "--host-timeout",
            "3",
            "--policy",
            "policy.toml",
        )
        done = self.farandole("submit", *sizes, *quick, *options, *command)
        assert "see it with: farandole ps" in done

    def farandole(self, *words: str, check: bool = True) -> str:
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.folder), "COLUMNS": "80"}
        command = [sys.executable, "-m", "farandole", *words]
        done = self.slurm.run(command, cwd=self.folder, env=environment, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def scale(self, np: int) -> None:
        self.farandole("scale", str(self.path), str(np))

    @property
    def said(self) -> str:
        """What the lead's job has written."""
        path = self.folder / "lead.out"
        return path.read_text() if path.exists() else ""

    def trains(self) -> list[tuple[int, ...]]:
        """Worker, generation, rank, size and step of each worker that has begun to train in a generation."""
        return [tuple(map(int, found.groups())) for found in TRAINS.finditer(self.said)]

    def generation(self, size: int, after: int = 0) -> list[tuple[int, ...]]:
        """Wait until all ranks of a generation of this size train, later than ``after``."""
        found: list[tuple[int, ...]] = []

        def is_there() -> bool:
            own = [each for each in self.trains() if each[1] > after and each[3] == size]
            last = max((each[1] for each in own), default=0)
            found[:] = sorted((each for each in own if each[1] == last), key=lambda each: each[2])
            return len(found) == size

        self.until(is_there, f"for a generation of {size}")
        return found

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for ``condition``; fail with what is known at the deadline."""
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > until_s:
                outputs = "\n".join(f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self.outputs())
                pytest.fail(f"waited in vain {what}\n{self.queue()}\n{self.said[-4000:]}\n{outputs}")
            time.sleep(0.05)  # nothing announces what a file and a queue show

    def outputs(self) -> list[Path]:
        return sorted(self.path.glob("lease-*.out"))

    def queue(self, *states: str) -> list[str]:
        """Names and states of jobs in the queue."""
        wanted = ["--states=" + ",".join(states)] if states else []
        shown = self.slurm.run(["squeue", "--noheader", "--array", *wanted, "--format=%j %T %r"]).stdout
        return [line for line in shown.splitlines() if "fdl-run" in line]

    def end(self) -> None:
        """Have the training end by itself; within 25 seconds nothing of it may be in the queue."""
        (self.folder / "end").touch()
        self.until(lambda: not any("lead" in job for job in self.queue()), "for the lead")
        end_s = time.monotonic()
        self.until(lambda: not self.queue(), "for an empty queue")
        assert time.monotonic() - end_s < 25

    def records(self) -> list[LeaseRecord]:
        """All decisions of the journal."""
        with open(self.path / JOURNAL) as lines:
            return list(read_records(lines))

    def phases(self) -> dict[str, list[str]]:
        """Phases that each lease went through, by the journal."""
        found: dict[str, list[str]] = {}
        for line in self.records():
            for lease in line.seen.leases:
                own = found.setdefault(lease.job, [])
                if own[-1:] != [lease.phase.value]:
                    own.append(lease.phase.value)
        return found


def lent(run: Run, size: int) -> list[tuple[int, ...]]:
    """Submit, and have a generation of this size."""
    run.submit()
    run.generation(1)
    run.scale(size)
    return run.generation(size)


def node_of(run: Run, lease: str) -> str:
    return run.slurm.run(["squeue", "--noheader", f"--jobs={lease}", "--format=%N"]).stdout.strip()


def running(run: Run) -> list[str]:
    """Leases that run."""
    shown = run.slurm.run(["squeue", "--noheader", "--states=RUNNING", "--format=%i %j"]).stdout.splitlines()
    return sorted(line.split()[0] for line in shown if line.endswith("fdl-run"))
