"""A real Slurm for the contract of schedulers: its user is ``nobody``, its administrator root."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path
from typing import final

from farandole.launch.leases.scheduler import Scheduler
from farandole.launch.leases.slurm import SlurmScheduler
from tests.support.patience import PATIENCE_S
from workbench.cluster import SlurmCluster
from workbench.scheduler.under_test import SchedulerUnderTest

USER = "nobody"
PAUSE_S = 0.05
DEADLINE_S = PATIENCE_S


@final
class SlurmUnderTest(SchedulerUnderTest):
    """Slurm on a head and nodes; its commands lie in a folder."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.nodes = slurm, len(slurm.cluster.nodes)
        self._variables = {**os.environ, "PATH": slurm.commands(folder, USER)}
        self._is_hanging = False

    def scheduler(self, patience_s: float) -> Scheduler:
        return SlurmScheduler(self._variables, patience_s)

    def script(self, minutes: int) -> str:
        return _script(f"--time={minutes}", "--exclusive")

    def impossible_script(self) -> str:
        return _script("--partition=nowhere")

    def clear(self) -> None:
        self.slurm.run(["scancel", f"--user={USER}"])
        until_s = time.monotonic() + DEADLINE_S
        while self.slurm.run(["squeue", "--noheader"]).stdout or self._are_nodes_busy():
            assert time.monotonic() < until_s, "jobs do not end"
            self.pause()

    def _are_nodes_busy(self) -> bool:
        said = self.slurm.run(["sinfo", "--noheader", "--states=idle", "--partition=main", "--format=%D"]).stdout
        return said.strip() != str(self.nodes)

    def bar(self, job: str) -> None:
        self.slurm.run(["scontrol", "hold", job])

    def drain(self, node: str, reason: str) -> None:
        self.slurm.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])

    def undrain(self, node: str) -> None:
        self.slurm.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])

    def close_queue(self) -> None:
        self.slurm.run(["scontrol", "update", "PartitionName=main", "State=DRAIN"])

    def open_queue(self) -> None:
        self.slurm.run(["scontrol", "update", "PartitionName=main", "State=UP"])

    def go_away(self) -> None:
        self.slurm.stop_controller()

    def hang(self) -> None:
        self.slurm.signal_controller(signal.SIGSTOP)
        self._is_hanging = True

    def come_back(self) -> None:
        if self._is_hanging:
            self.slurm.signal_controller(signal.SIGCONT)
        else:
            self.slurm.start_controller()
        self._is_hanging = False

    def now(self) -> float:
        return time.monotonic()

    def wait(self, scheduler: Scheduler) -> None:
        deadline_s = scheduler.deadline_s
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        select.select(scheduler.fds, (), (), left_s)

    def pause(self) -> None:
        time.sleep(PAUSE_S)  # Slurm announces nothing to whoever only looks


def _script(*options: str) -> str:
    lines = ["#!/bin/sh", '#SBATCH --job-name="fdl-a b"', "#SBATCH --output=/dev/null"]
    return "\n".join([*lines, *(f"#SBATCH {option}" for option in options), "exec sleep 600", ""])
