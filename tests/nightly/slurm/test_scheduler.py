"""Slurm keeps the contract of schedulers; what it says otherwise than others is told apart."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from farandole.launch.leases.scheduler import JobPhase, Submitted
from farandole.launch.leases.script import LeaseJob, LeaseShape, lease_script
from farandole.launch.leases.slurm import SlurmScheduler
from farandole.launch.sbatch.options import BatchOptions
from tests.support.cluster.slurm_under_test import USER, SlurmUnderTest
from workbench.cluster import SlurmCluster
from workbench.scheduler.bench import SchedulerBench, are_gone
from workbench.scheduler.contract import CASES, run_contract

LEASE = """#!/bin/sh
echo "$@" on $(hostname) with $SLURM_NTASKS of $SLURM_JOB_NUM_NODES, $WORD, ${MY_TOKEN:-no token}
"""


@pytest.mark.parametrize("case", CASES)
def test_slurm_keeps_the_contract(slurm: SlurmCluster, tmp_path: Path, case: str) -> None:
    (wrong,) = run_contract(SlurmUnderTest(slurm, tmp_path), {case: CASES[case]}).values()
    assert not wrong, wrong


def test_a_lease_runs_its_agent_once_on_each_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text(LEASE)
    agent.chmod(0o755)
    run = tmp_path / "a run"
    run.mkdir()
    options = BatchOptions(environment={"WORD": "two words"}, setup=["umask 077"])
    script = lease_script(LeaseJob("a1b2", str(run), LeaseShape(2, 3, 5, 4), options, launcher=(str(agent),)))
    variables = {**os.environ, "PATH": slurm.commands(tmp_path), "MY_TOKEN": "secret", "SLURM_NTASKS": "77"}
    scheduler = SlurmScheduler(variables)
    bench = SchedulerBench(SlurmUnderTest(slurm, run), scheduler)
    scheduler.submit(script, 2, "b1946ac9")
    answer = bench.answer()
    assert isinstance(answer, Submitted), answer
    bench.done("start", f"{answer.array}_1")
    jobs = bench.until(answer.array, are_gone(1), "a lease ends with its agents")
    assert jobs[0].phase is JobPhase.HELD
    bench.done("cancel", f"{answer.array}_0")
    scheduler.close()
    said = (run / f"lease-{answer.array}_1.out").read_text().splitlines()
    assert sorted(line for line in said if not line.startswith("srun: ")) == [
        f"join -np 3 {run} on node{n} with 2 of 2, two words, no token" for n in (1, 2)
    ]


def test_slurm_takes_the_scripts_of_leases(slurm: SlurmCluster, tmp_path: Path) -> None:
    options = BatchOptions(partition="main", cpus_per_task=2, mem="1G", setup=["true"], sbatch=["--exclusive"])
    for shape in (LeaseShape(1, 4, 60), LeaseShape(2, 2, 90, 20)):
        (tmp_path / "lease.sh").write_text(lease_script(LeaseJob("a1b2", str(tmp_path), shape, options)))
        said = slurm.run(["sbatch", "--test-only", "--array=0-3", "--hold", "lease.sh"], cwd=tmp_path).stderr
        assert re.match(r"sbatch: Job \d+ to start at ", said)


def test_times_are_those_of_any_clock_and_a_suspended_job_is_seen_so(slurm: SlurmCluster, tmp_path: Path) -> None:
    under_test = SlurmUnderTest(slurm, tmp_path)
    odd = {"TZ": "Asia/Kolkata", "SLURM_TIME_FORMAT": "relative", "SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "RUNNING"}
    scheduler = SlurmScheduler({**os.environ, "PATH": slurm.commands(tmp_path, USER), **odd})
    bench = SchedulerBench(under_test, scheduler)
    try:
        array = bench.started(under_test.nodes, minutes=10)
        view = bench.look(array)[0]
        assert abs(view.ends_s - time.time() - 600) < 60, "a time limit of 10 minutes"
        waiting = bench.submitted(1)
        bench.done("start", f"{waiting}_0")
        estimated = bench.until(waiting, lambda jobs: jobs[0].starts_s > 0, "the start is estimated")[0]
        assert abs(estimated.starts_s - view.ends_s) < 60, "it starts when another has to end"
        bench.done("cancel", f"{waiting}_0")  # else it would take the node of the one that is suspended
        slurm.run(["scontrol", "suspend", f"{array}_1"])
        bench.until(array, lambda jobs: jobs[1].phase is JobPhase.SUSPENDED, "it is suspended")
        slurm.run(["scontrol", "resume", f"{array}_1"])
        bench.until(array, lambda jobs: jobs[1].phase is JobPhase.RUNNING, "it runs again")
    finally:
        scheduler.close()
        under_test.clear()
