"""A search that has a real Slurm lend it nodes: as many as the policy allows and trials can use, none at the end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.journal import read_records, replay
from farandole.search.trial_log import TrialLog
from tests.nightly.search.test_hosts import SCRIPT, UNTIL_GO, epochs, search, until
from workbench.cluster import SlurmCluster

POLICY = "most-leases = 1\nmost-pending = 1\nlook-pending-s = 1.0\nlook-s = 2.0\nleave-s = 5.0\nshrink-after-s = 1.0\n"
UNTIL_GATES = """\
            gate = "end" if trial.number == 0 else "go"
            while state.epoch == 2 and not pathlib.Path(gate).exists():
                time.sleep(0.02)
                state.commit()
"""
VALUE = '(trial.parameters["x"] - 0.3) ** 2 + float(state.weights["w"][0])'
GATED = SCRIPT.replace(UNTIL_GO, UNTIL_GATES).replace("trial.number + 1 / state.epoch", VALUE)
TRIALS = ("--trials", "6", "--epochs", "3", "--min-epochs", "3", "--advisor", "random", "--seed", "7")
LEASES = ("--lease", "1x1@10min", "--max-np", "3", "--policy", "policy.toml", "--sbatch=--exclusive")


class Search:
    """A search on the head, with leases of a node and a worker each."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        folder.chmod(0o700)
        (folder / "policy.toml").write_text(POLICY)
        self.process = search(slurm.cluster, folder, *TRIALS, *LEASES, script=GATED)

    @property
    def said(self) -> str:
        return (self.folder / "said.txt").read_text()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until(lambda: condition() or self.process.poll() is not None, what, self.folder)
        assert condition(), self.said

    def running(self) -> list[str]:
        """Leases that run."""
        return self.slurm.run(["squeue", "-h", "--array", "--states=RUNNING", "--format=%i"]).stdout.split()

    def queue(self) -> list[str]:
        return self.slurm.run(["squeue", "-h", "--array", "--format=%i %T %r"]).stdout.splitlines()

    def farandole(self, verb: str) -> str:
        done = self.slurm.run([sys.executable, "-m", "farandole", verb, "run/pool"], cwd=self.folder, check=False)
        return done.stdout + done.stderr

    def hosts(self) -> set[str]:
        """Nodes on which trials have trained."""
        return {host for _, _, host, _ in epochs(self.folder)}


def results(folder: Path) -> list[tuple[object, ...]]:
    """Parameters, values and end of each trial."""
    with TrialLog(folder / "run" / "trials.log", "run", minimize=True) as log:
        return [(each.number, each.parameters, each.seed, each.values, each.phase) for each in log.trials()]


def results_here(slurm: SlurmCluster, folder: Path) -> list[tuple[object, ...]]:
    """The same of a search on slots of the head."""
    for gate in ("go", "end"):
        (folder / gate).touch()
    with search(slurm.cluster, folder, *TRIALS, "--pool", "2", script=GATED) as process:
        until(lambda: process.poll() is not None, "for the end", folder)
        assert process.returncode == 0, (folder / "said.txt").read_text()
    found = results(folder)
    assert len(found) == 6
    return found


def test_a_search_grows_as_its_policy_allows_survives_a_cancelled_lease_and_leaves_nothing(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    leased, local = tmp_path / "leased", tmp_path / "local"
    for each in (leased, local):
        each.mkdir()
    steered = Search(make_slurm(3), leased)
    with steered.process:
        steered.wait(lambda: len(epochs(leased)) == 2, "for the first lease, with a trial that waits")
        assert len(steered.running()) == 1
        shown = steered.farandole("ps")
        assert "search run: 1 worker; 1/6 trials: 1 running" in shown
        assert "held back" in shown
        policy = leased / "run" / "pool" / "policy.toml"
        policy.write_text(policy.read_text().replace("most-leases = 1\n", ""))
        steered.wait(lambda: len(steered.hosts()) == 3, "for three nodes, as the policy was changed")
        first = steered.running()
        assert len(first) == 3
        assert "the search can use 6 workers" in steered.said
        steered.slurm.run(["scancel", first[0]])
        steered.wait(lambda: len(set(steered.running()) - set(first)) == 1, "for a successor of what was cancelled")
        assert first[0] not in steered.running()
        (leased / "go").touch()
        steered.wait(lambda: steered.farandole("ps").count("5 complete") == 1, "for all trials but one")
        steered.wait(lambda: len(steered.running()) == 1, "for what one trial does not need to be given back")
        assert "no more than 1 worker wanted: the search can use 1 worker" in steered.said
        assert steered.said.count("trial 0 goes on") <= 1, "only its node was cancelled, and idle ones were given back"
        (leased / "end").touch()
        until(lambda: steered.process.poll() is not None, "for the end", leased)
        assert steered.process.returncode == 0, steered.said
        assert steered.queue() == [] or all("COMPLETING" in job for job in steered.queue()), steered.queue()
        until(lambda: not steered.queue(), "for an empty queue", leased)
    with open(leased / "run" / "pool" / JOURNAL) as lines:
        assert not list(replay(lines)), "the journal decides the same again"
        lines.seek(0)
        *_, last = read_records(lines)
    assert (last.seen.leases, last.seen.node_hours > 0) == ((), True)
    assert results(leased) == results_here(steered.slurm, local)


def test_a_search_that_is_killed_has_its_leases_ended_by_stop_or_goes_on_with_them(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path
) -> None:
    steered = Search(make_slurm(2), tmp_path)
    steered.wait(lambda: len(epochs(tmp_path)) == 2, "for the first lease")
    assert steered.farandole("hold") == "no more leases are released; go on with: farandole release\n"
    steered.process.kill()
    steered.process.wait()
    until(lambda: not steered.running(), "for the end of the lease, whose search is silent", tmp_path)
    held = [job.split()[0] for job in steered.queue()]
    assert held, "which are the next call's, or nobody's"
    again = Search(steered.slurm, tmp_path)
    again.wait(lambda: again.farandole("ps").count("held back") == 1, "for the call that goes on")
    assert {job.split()[0] for job in again.queue()} <= set(held), "it asks for no other array"
    again.farandole("release")
    again.wait(lambda: len(again.running()) == 1, "for a lease of the same array")
    again.process.kill()
    again.process.wait()
    said = again.farandole("stop")
    assert "so its jobs are cancelled: " in said
    until(lambda: not again.queue(), "for an empty queue", tmp_path)


def test_a_search_in_a_job_takes_its_leases_with_it(make_slurm: Callable[..., SlurmCluster], tmp_path: Path) -> None:
    slurm = make_slurm(2)
    tmp_path.chmod(0o700)
    (tmp_path / "tune.py").write_text(GATED)
    (tmp_path / "space.toml").write_text("[x]\nlow = 0.0\nhigh = 1.0\n")
    (tmp_path / "policy.toml").write_text(POLICY)
    words = ("search", "tune.py", "space.toml", "--folder", "run", *TRIALS, *LEASES)
    script = f"FARANDOLE_HOST_TIMEOUT_S=5 exec {shlex.join([sys.executable, '-m', 'farandole', *words])}"
    asked = ["sbatch", "--parsable", "--exclusive", "--no-requeue", "--output=said.txt", f"--wrap={script}"]
    job = slurm.run(asked, cwd=tmp_path).stdout.strip()
    until(lambda: len(epochs(tmp_path)) == 2, "for the first lease", tmp_path)
    assert len(slurm.run(["squeue", "-h", "--array", "--format=%i"]).stdout.split()) > 2, "others are held"
    slurm.run(["scancel", "--signal=KILL", "--full", job])
    until(lambda: not slurm.run(["squeue", "-h", "--array"]).stdout, "for an empty queue", tmp_path)
