"""One training over several jobs of a real Slurm: ``farandole submit --lease`` on a head and four nodes."""

from __future__ import annotations

import faulthandler
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farandole.control.private_file import write_private
from farandole.launch.hosts.run_folder import CONTACT
from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.journal import replay
from farandole.launch.leases.lease import LeasePhase
from tests.support.slurm.lease_run import DEADLINE_S, WORKER, Run, lent, node_of, running
from workbench.cluster import URGENT, SlurmCluster, UnavailableError

CHAINED = 3
"""Leases that are to be succeeded."""


@pytest.fixture(scope="module")
def slurm_of_4() -> Iterator[SlurmCluster]:
    try:
        cluster = SlurmCluster(4)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with cluster:
        yield cluster


@pytest.fixture
def own_run(make_slurm: Callable[..., SlurmCluster], tmp_path: Path) -> Run:
    """A run on hosts that are this test's alone, and may lose power."""
    tmp_path.chmod(0o700)
    return Run(make_slurm(4), tmp_path)


@pytest.fixture
def run(slurm_of_4: SlurmCluster, tmp_path: Path) -> Iterator[Run]:
    tmp_path.chmod(0o700)
    slurm = slurm_of_4
    yield Run(slurm, tmp_path)
    slurm.run(["scancel", "--user=root"])
    until_s = time.monotonic() + DEADLINE_S
    while slurm.run(["squeue", "--noheader"]).stdout and time.monotonic() < until_s:
        time.sleep(0.05)


def test_slurm_takes_both_scripts(run: Run) -> None:
    sizes = ("--min-np", "1", "--max-np", "4", "--lease", "1x1@1h,20min", "--run-folder", str(run.path))
    said = run.farandole("submit", "--test-only", *sizes, sys.executable, str(WORKER))
    assert len(re.findall(r"Job \d+ to start at", said)) == 2
    assert not run.path.exists()
    assert not run.queue()


def test_a_run_grows_and_shrinks_as_it_is_ordered_and_leaves_nothing(run: Run) -> None:
    run.submit()
    run.generation(1)
    assert all("JobHeldUser" in job for job in run.queue("PENDING"))
    run.scale(3)
    grown = run.generation(3)
    assert len([job for job in run.queue("RUNNING") if "lead" not in job]) == 2
    assert "sshd" not in str(run.slurm.cluster.processes("node1"))
    shown = run.farandole("ps", str(run.path))
    assert "3 workers (1 to 4)" in shown
    assert max(map(len, shown.splitlines())) <= 80
    run.scale(1)
    alone = run.generation(1, after=grown[0][1])
    assert alone[0][0] == 0
    assert alone[0][4] >= grown[0][4]
    run.until(lambda: not [job for job in run.queue("RUNNING") if "lead" not in job], "for the ends of leases")
    run.end()
    ended = [phases for phases in run.phases().values() if "member" in phases]
    assert ended == [[phase.value for phase in LeasePhase if phase.value in own] for own in ended]
    assert len(ended) == 2
    with open(run.path / JOURNAL) as lines:
        assert not list(replay(lines))
    assert 0 < run.records()[-1].seen.progress.pause_s < DEADLINE_S, "what the changes have cost is known to the policy"


def test_leases_whose_workers_fail_are_given_back_and_no_more_are_asked_for(run: Run) -> None:
    """They were held to the end of the training, and their node-hours spent."""
    train = 'test "$FARANDOLE_WORKER_ID" = 0 || exit 7; exec "$0" "$1"'
    run.submit(command=["bash", "-c", train, sys.executable, str(WORKER)])
    run.generation(1)
    run.scale(2)
    run.until(lambda: f"then type: farandole release {run.path}" in run.said, "for the end of vain tries")
    run.until(lambda: not [job for job in run.queue("RUNNING") if "lead" not in job], "for the ends of leases")
    assert run.said.count("leaves at the next commit: the workers there fail, again and again") == 2
    assert len(run.queue("PENDING")) == 4, "of six leases"
    run.end()


def test_a_preempted_lease_leaves_at_once_and_a_successor_is_released(run: Run) -> None:
    grown = lent(run, 3)
    lease = running(run)[0]
    node = node_of(run, lease)
    took = ["sbatch", "--parsable", f"--partition={URGENT}", f"--nodelist={node}", "--exclusive", "--wrap=sleep 30"]
    begin_s = time.monotonic()
    other = run.slurm.run([*took, f"--output={run.folder}/urgent.out"]).stdout.strip()
    run.until(lambda: other in run.slurm.run(["squeue", "--noheader", "--states=RUNNING"]).stdout, "for who preempts")
    assert time.monotonic() - begin_s < 25  # with a grace of 30 s, which nobody has to wait for
    run.generation(3, after=grown[0][1])
    assert lease not in running(run)
    assert f"+{lease} leaves at the next commit: its scheduler wants it back (SIGTERM)" in run.said
    run.slurm.run(["scancel", other])
    run.end()


def test_a_node_that_loses_power_costs_a_step_and_is_replaced(own_run: Run) -> None:
    run = own_run
    grown = lent(run, 2)
    [lease] = running(run)
    node = node_of(run, lease)
    run.slurm.cluster.kill(node)
    try:
        rest = run.generation(1, after=grown[0][1])
        assert rest[0][4] >= grown[0][4]
        assert run.generation(2, after=rest[0][1])
        assert lease not in running(run) or node_of(run, running(run)[-1]) != node
    finally:
        run.slurm.boot(node)
    (run.folder / "end").touch()
    run.until(lambda: not any("lead" in job for job in run.queue()), "for the lead")


def test_a_lease_leaves_a_node_that_is_drained_and_outlives_not_its_suspension(run: Run) -> None:
    grown = lent(run, 3)
    drained, stopped = running(run)
    node = node_of(run, drained)
    run.slurm.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a fan"])
    try:
        later = run.generation(3, after=grown[0][1])
        assert later[0][4] >= grown[0][4]
        assert f"its node {node} (a fan) is being drained" in run.said
        assert drained not in running(run)
        assert stopped in running(run)
        assert node not in {node_of(run, job) for job in running(run)}, "no lease starts where nothing is to run"
        run.slurm.run(["scontrol", "suspend", stopped])
        run.until(lambda: f"{stopped} was suspended by somebody" in run.said, "for what is said of it")
        again = run.generation(3, after=later[0][1])
        assert again[0][4] >= later[0][4]
        run.slurm.run(["scontrol", "resume", stopped])
        run.until(lambda: not node_of(run, stopped), "for its end: it is not taken back")
        assert len(running(run)) == 2
    finally:
        run.slurm.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
    run.end()


def test_nothing_is_left_of_a_lead_that_was_cancelled_or_killed(run: Run) -> None:
    run.submit()
    run.until(lambda: any("lead" in job for job in run.queue("RUNNING")), "for the lead")
    assert len([job for job in run.queue("PENDING") if "Held" in job]) == 6
    by_hand = next(line.split()[0] for line in run.slurm.run(["squeue", "-hrt", "PD", "-o", "%i"]).stdout.splitlines())
    run.slurm.run(["scontrol", "release", by_hand])
    run.until(lambda: by_hand in running(run), "for a lease that was tied to its lead, and released by hand")
    lead = run.slurm.run(["squeue", "--noheader", "--name=fdl-run-lead", "--format=%i"]).stdout.strip()
    run.slurm.run(["scancel", "--signal=KILL", "--full", lead])
    run.until(lambda: not run.queue(), "for an empty queue")


def test_a_run_without_a_lead_is_stopped_by_what_its_folder_knows(run: Run) -> None:
    run.submit("--sbatch=--begin=now+1hour")
    assert len(run.queue()) == 7
    waits = r"the run run has no leader now: its job \d+ waits \(BeginTime\)"
    assert re.search(waits, run.farandole("ps", str(run.path), check=False))
    (run.path / JOURNAL).mkdir()  # which cannot be read: what is known without it is cancelled all the same
    said = run.farandole("stop", str(run.path), check=False)
    assert "so its jobs are cancelled" in said
    assert f"{JOURNAL} cannot be read" in said
    run.until(lambda: not run.queue(), "for an empty queue")
    (run.path / JOURNAL).rmdir()
    assert "so its jobs are cancelled" in run.farandole("stop", str(run.path)), "again, of what is gone"


def test_all_runs_are_shown_and_known_by_their_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = run.folder / "home" / ".farandole" / "runs"
    runs.mkdir(parents=True)
    (runs / "cosmo").symlink_to(run.path)
    monkeypatch.setenv("HOME", str(run.folder / "home"))
    run.submit("--sbatch=--begin=now+1hour")
    lead = run.slurm.run(["squeue", "--noheader", "--name=fdl-run-lead", "--format=%i"]).stdout.strip()
    assert re.search(rf"cosmo +its job {lead} waits \(BeginTime\)", run.farandole("ps"))
    run.slurm.run(["scontrol", "update", f"JobId={lead}", "StartTime=now"])
    run.generation(1)
    run.until((run.path / CONTACT).exists, "for the contact of the lead")
    assert re.search(r"cosmo +1 worker \(1 to 4\), generation 1, for", run.farandole("ps"))
    assert "no more leases are released" in run.farandole("hold", "cosmo")
    assert run.farandole("ps", "cosmo").startswith("run cosmo: 1 worker ")
    run.end()
    assert re.search(r"no run goes on in .*over: cosmo\n", run.farandole("ps"), re.DOTALL)


def test_it_is_told_that_the_job_of_a_dead_lead_has_ended(run: Run) -> None:
    """It was called for 15 seconds, and its addresses were told."""
    run.submit()
    run.generation(1)
    lead = run.slurm.run(["squeue", "--noheader", "--name=fdl-run-lead", "--format=%i"]).stdout.strip()
    contact = (run.path / CONTACT).read_bytes()
    run.slurm.run(["scancel", "--signal=KILL", "--full", lead])
    run.until(lambda: not run.queue(), "for an empty queue")
    for is_left in (False, True):
        if is_left:
            write_private(run.path / CONTACT, contact)
        said = run.farandole("scale", str(run.path), "2", check=False)
        assert re.search(
            rf"{'cannot be reached from here' if is_left else 'no leader now'}: its job {lead} has ended", said
        )


def test_what_people_do_in_the_queue_are_orders(run: Run) -> None:
    run.submit()
    run.generation(1)
    full = run.slurm.run(
        ["sbatch", "--parsable", "--exclusive", "--nodes=3", "--wrap=sleep 600"], cwd=run.folder
    ).stdout.strip()
    run.until(lambda: full in run.slurm.run(["squeue", "--noheader", "--states=RUNNING"]).stdout, "for a full cluster")
    run.scale(4)

    def waiting() -> list[str]:
        return [job for job in run.queue("PENDING") if "Held" not in job]

    run.until(lambda: len(waiting()) == 2, "for two leases that wait, and no more")
    assert "Release" not in run.farandole("plan", "--dry-run", str(run.path))
    assert len(waiting()) == 2
    shown = run.slurm.run(["squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %r"]).stdout
    pending = [line.split()[0] for line in shown.splitlines() if "Held" not in line]
    run.until(lambda: all(run.phases().get(job, [""])[-1] == "pending" for job in pending), "for a look")
    run.slurm.run(["scancel", pending[0]])
    run.until(lambda: f"{pending[0]} was cancelled by somebody" in run.said, "for the order")
    run.slurm.run(["scancel", full])
    run.until(lambda: len(running(run)) >= 1, "for the other one")
    assert "nothing is released" in run.farandole("ps", str(run.path))
    run.farandole("release", str(run.path))
    run.scale(3)
    run.generation(3)
    run.end()


def test_a_hold_of_an_administrator_is_binding_and_no_error_comes_again_and_again(run: Run) -> None:
    run.submit()
    run.generation(1)
    full = run.slurm.run(["sbatch", "--parsable", "--exclusive", "--nodes=3", "--wrap=sleep 600"], cwd=run.folder)
    run.until(lambda: full.stdout.strip() in run.slurm.run(["squeue", "-ht", "RUNNING"]).stdout, "for a full cluster")
    run.scale(2)
    run.until(lambda: "PENDING Resources" in str(run.queue()) or "PENDING Priority" in str(run.queue()), "for a lease")
    waiting = run.slurm.run(["squeue", "-hrt", "PD", "--format=%i %r"]).stdout.splitlines()
    lease = next(line.split()[0] for line in waiting if "Held" not in line)
    run.slurm.run(["scontrol", "hold", lease])
    run.until(lambda: f"{lease} is held by an administrator: nothing is released" in run.said, "for the order")
    run.slurm.run(["scancel", full.stdout.strip()])
    time.sleep(5)  # looks are a second apart
    assert not running(run)
    assert "refuses" not in run.said
    run.farandole("release", str(run.path))
    run.scale(2)
    run.generation(2)
    assert running(run) != [lease], "another one is released, and that one is not"
    assert "JobHeldAdmin" in str(run.queue())
    run.end()


def test_slurm_is_away_and_the_training_goes_on(own_run: Run) -> None:
    run = own_run
    grown = lent(run, 2)
    run.slurm.stop_controller()
    run.farandole("scale", str(run.path), "1")
    alone = run.generation(1, after=grown[0][1])  # to leave needs no Slurm
    run.scale(3)
    run.slurm.start_controller()
    run.generation(3, after=alone[0][1])
    assert len(running(run)) <= 3
    run.end()


def begins_again(run: Run, before: int) -> bool:
    """True once another lead trains; a worker that leaves a step after the last other trained alone, but not first."""
    return any(each[1:4] == (1, 0, 1) for each in run.trains()[before:])


def test_the_lead_loses_power_and_is_queued_again_with_its_held_leases(own_run: Run) -> None:
    run = own_run
    lent(run, 2)
    lead = next(
        line.split()[0]
        for line in run.slurm.run(["squeue", "--noheader", "--format=%i %j"]).stdout.splitlines()
        if "lead" in line
    )
    node = node_of(run, lead)
    before = len(run.trains())
    run.slurm.cluster.kill(node)
    try:
        run.until(lambda: not running(run), "for the ends of its leases")
        run.slurm.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power"])
        run.until(lambda: begins_again(run, before), "for another lead")
        run.scale(2)
        run.until(lambda: any(each[3] == 2 for each in run.trains()[before:]), "for its leases")
    finally:
        run.slurm.boot(node)
    run.end()


def test_leases_leave_with_a_lead_that_is_told_to_end_and_come_again_when_it_is_queued_again(run: Run) -> None:
    lent(run, 2)
    before = len(run.trains())
    found = run.slurm.run(["squeue", "--noheader", "--name=fdl-run-lead", "--format=%i"]).stdout.strip()
    run.slurm.run(["scancel", "--signal=TERM", found])  # as Slurm does before a time limit: steps get it, no script
    run.until(lambda: "the leader is told to end (SIGTERM): all workers leave" in run.said, "for the notice")
    run.until(lambda: not running(run), "for the end of its lease")
    run.until(lambda: begins_again(run, before), "for the lead again")
    assert any("Held" in job for job in run.queue("PENDING"))
    run.scale(2)
    run.until(lambda: any(each[3] == 2 for each in run.trains()[before:]), "for another lease")
    assert "exited with code -9" not in run.said
    run.end()


def test_a_training_outlives_the_time_limits_of_its_leases(run: Run) -> None:
    faulthandler.cancel_dump_traceback_later()  # it is no hang after five minutes
    run.submit(lease="1x1@2min")
    run.generation(1)
    run.scale(2)
    last = run.generation(2)
    for _ in range(CHAINED):
        joined = run.generation(2, after=last[0][1])
        assert joined[0][4] >= last[0][4], "no step is lost"
        assert joined[1][0] != last[1][0], "by a successor"
        last = joined
    shown = run.slurm.run(["scontrol", "show", "job"]).stdout
    assert "TIMEOUT" not in shown
    assert "its job ends at" in run.said or "its successor trains" in run.said
    run.end()
    assert len([phases for phases in run.phases().values() if "member" in phases]) > CHAINED


def test_the_key_is_in_the_folder_alone(run: Run) -> None:
    lent(run, 2)
    contact = (run.path / "run.json").read_text()
    secret = re.findall(r'"secret":"([0-9a-f]{64})"', contact)[0]
    assert (run.path / "run.json").stat().st_mode & 0o777 == 0o600
    shown = run.slurm.run(["scontrol", "show", "job", "--details"]).stdout
    shown += run.slurm.run(["squeue", "--format=%all"]).stdout
    hosts = run.slurm.cluster.hosts
    shown += str([run.slurm.cluster.processes(host) for host in hosts])
    assert secret not in shown
    for path in filter(Path.is_file, run.path.rglob("*")):
        assert secret not in path.read_text() or path.name == "run.json", path
    run.end()
