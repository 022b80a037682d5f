"""Leases and a real Slurm's accounts: limits of a site, what it is asked for, node-hours, and a trace of its past."""

from __future__ import annotations

import faulthandler
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.launch.leases.actions import Release, SubmitArray
from farandole.launch.leases.journal import LeaseRecord
from tests.support.slurm.lease_run import DEADLINE_S, Run, running
from workbench.cluster import SlurmCluster, UnavailableError

TRACE = "JobID,Submit,Start,End,NNodes,State,Timelimit"
JOB_LOOKS = ("REQUEST_JOB_INFO_SINGLE", "REQUEST_JOB_INFO", "REQUEST_JOB_USER_INFO")
LASTS_S = 200.0
"""Time that leases last, of which Slurm counts whole seconds, and an agent ends up to one before its job."""
DEFAULTS = ""
"""Policy without a line: the looks are as seldom as in earnest."""


@pytest.fixture(scope="module")
def accounts() -> Iterator[SlurmCluster]:
    try:
        cluster = SlurmCluster(4, accounts=True)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with cluster:
        yield cluster


@pytest.fixture
def run(accounts: SlurmCluster, tmp_path: Path) -> Iterator[Run]:
    tmp_path.chmod(0o700)
    yield Run(accounts, tmp_path)
    accounts.run(["scancel", "--user=root"])
    until_s = time.monotonic() + DEADLINE_S
    while accounts.run(["squeue", "--noheader"]).stdout and time.monotonic() < until_s:
        time.sleep(0.05)


def most_jobs(run: Run, number: int) -> None:
    """Let root have so many jobs; -1: any number."""
    run.slurm.run(["sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={number}"])


def submissions(run: Run) -> int:
    return sum(isinstance(each.action, SubmitArray) for line in run.records() for each in line.decisions)


def releases(run: Run) -> list[LeaseRecord]:
    """The decision in which each lease was released."""
    return [line for line in run.records() for each in line.decisions if isinstance(each.action, Release)]


def requests(run: Run) -> dict[str, int]:
    """How often slurmctld was asked for what since the last reset."""
    said = run.slurm.run(["sdiag"]).stdout
    return {name: int(count) for name, count in re.findall(r"^\t(\w+) +\( *\d+\) count:(\d+)", said, re.MULTILINE)}


def test_limits_of_a_site_are_told_once_with_what_to_do_and_the_training_goes_on(run: Run) -> None:
    partition = ["scontrol", "update", "PartitionName=main"]
    run.submit("--leases", "1")
    run.generation(1)
    run.slurm.run([*partition, "AllocNodes=head"])
    try:
        run.scale(3)
        grown = run.generation(2)  # by what was held: to release needs no right to submit
        denied = (
            "the scheduler refuses to submit: Batch job submission failed: Access/permission denied -- jobs may not"
        )
        run.until(lambda: denied in run.said, "for the refusal")
    finally:
        run.slurm.run([*partition, "AllocNodes=ALL"])
    most_jobs(run, 2)
    try:
        run.farandole("release", str(run.path))
        run.scale(3)
        limited = "AssocMaxSubmitJobLimit"
        run.until(lambda: limited in run.said, "for the other refusal")
        assert "you have as many jobs as you may" in run.said
    finally:
        most_jobs(run, -1)
    assert run.said.count(denied) == run.said.count(limited) == 1
    assert submissions(run) == 2, "one for each: no loop"
    assert len(running(run)) == 1
    run.farandole("release", str(run.path))
    run.scale(3)
    assert run.generation(3, after=grown[0][1])[0][4] > grown[0][4]
    assert submissions(run) == 3
    run.end()


def test_refused_jobs_are_told_with_what_to_do_where_people_submit(run: Run) -> None:
    sizes = ("--min-np", "1", "--max-np", "4", "--lease", "1x1@1h", "--run-folder", str(run.path))
    most_jobs(run, 2)
    try:
        said = run.farandole("submit", *sizes, sys.executable, "train.py", check=False)
    finally:
        most_jobs(run, -1)
    assert "AssocMaxSubmitJobLimit" in said
    assert "take fewer with --leases N" in said
    assert not run.queue()


def test_what_sacct_says_of_a_real_cluster_is_a_trace_to_plan_on(run: Run) -> None:
    held = run.slurm.run(["sbatch", "--parsable", "--hold", "--array=0-3", "--output=/dev/null", "--wrap=true"]).stdout
    for _ in range(2):
        run.slurm.run(["sbatch", "--wait", "--nodes=2", "--time=5", "--output=/dev/null", "--wrap=sleep 1"])
    run.slurm.run(["scancel", held.strip()])
    trace, training = run.folder / "sacct.txt", run.folder / "training.toml"
    sacct = ["sacct", "-a", "-P", "-X", "-S", "now-7days", "-o", TRACE]
    run.until(lambda: run.slurm.run(sacct).stdout.count("COMPLETED|00:05:00") == 2, "for accounts, which are late")
    trace.write_text(run.slurm.run(sacct).stdout)
    training.write_text("samples = 1e6\n")
    planned = run.farandole("plan", "--trace", str(trace), "--static", "1,2", "--training", str(training))
    assert "node-hours" in planned


def test_node_hours_are_those_of_sacct_and_accounts_know_no_key(run: Run) -> None:
    run.submit()
    run.generation(1)
    run.scale(3)
    grown = run.generation(3)
    leases = running(run)
    secret = re.findall(r'"secret":"([0-9a-f]{64})"', (run.path / "run.json").read_text())[0]
    time.sleep(LASTS_S)  # nothing is to happen but that time passes
    run.scale(1)
    run.generation(1, after=grown[0][1])
    run.until(lambda: not running(run), "for the ends of leases")
    run.scale(2)  # a decision, which has the node-hours of both
    run.until(lambda: len(releases(run)) == 3, "for it")
    counted = releases(run)[2].seen.node_hours
    run.end()
    fields = ["sacct", "-X", "-P", "-n", f"--jobs={','.join(leases)}", "--format=ElapsedRaw,NNodes,State"]
    shown: list[str] = []

    def is_told() -> bool:
        shown[:] = run.slurm.run(fields).stdout.split()
        return len(shown) == 2

    run.until(is_told, "for accounts, which are late")
    assert [line.split("|")[2] for line in shown] == ["COMPLETED"] * 2, "to leave is to end well"
    paid = sum(math.prod(map(int, line.split("|")[:2])) for line in shown) / 3600
    print(f"node-hours {counted:.5f}, by sacct {paid:.5f}")
    assert abs(counted - paid) <= 0.02 * paid
    for option, has in (("--batch-script", "farandole join"), ("--env-vars", "PATH=")):
        stored = run.slurm.run(["sacct", option, f"--jobs={leases[0].partition('_')[0]}"]).stdout
        assert has in stored
        assert secret not in stored


def test_slurmctld_is_asked_for_jobs_once_a_minute_while_leases_wait(run: Run) -> None:
    faulthandler.cancel_dump_traceback_later()  # it is no hang after five minutes
    (run.folder / "policy.toml").write_text(DEFAULTS)
    run.submit()
    run.generation(1)
    full = run.slurm.run(["sbatch", "--parsable", "--exclusive", "--nodes=3", "-o", "/dev/null", "--wrap=sleep 900"])
    run.until(lambda: full.stdout.strip() in run.slurm.run(["squeue", "-ht", "RUNNING"]).stdout, "for a full cluster")
    run.scale(4)
    run.until(lambda: len([job for job in run.queue("PENDING") if "Held" not in job]) == 2, "for two that wait")
    run.slurm.run(["sdiag", "--reset"])
    time.sleep(300)  # without a look from here, which would count
    asked = requests(run)
    print(asked)
    assert 4 <= sum(asked.get(name, 0) for name in JOB_LOOKS) <= 6
    assert "REQUEST_UPDATE_JOB" not in asked
    assert len([job for job in run.queue("PENDING") if "Held" not in job]) == 2
    run.end()
