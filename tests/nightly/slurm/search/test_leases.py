"""A search on nodes that jobs of a real Slurm lend: they come, are wanted back, and end with the search."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from farandole.launch.leases.script import LeaseJob, lease_script, parse_lease
from tests.nightly.search.test_hosts import SCRIPT, UNTIL_GO, epochs, search, until
from workbench.cluster import URGENT, SlurmCluster

UNTIL_GATE = """\
            gate = pathlib.Path(f"gate-{trial.number}-{state.epoch}")
            while trial.number == 0 and state.epoch in (3, 6) and not gate.exists():
                time.sleep(0.02)
                state.commit()
"""
GATED = SCRIPT.replace(UNTIL_GO, UNTIL_GATE)


def lend(slurm: SlurmCluster, folder: Path) -> str:
    """Submit a job that lends a node with one worker, by the script of all leases; returns its number."""
    launcher = (sys.executable, "-m", "farandole")
    lease = LeaseJob("search", str(folder / "run" / "pool"), parse_lease("1x1@10min"), launcher=launcher)
    (folder / "lease.sh").write_text(lease_script(lease))
    return slurm.run(["sbatch", "--parsable", "--exclusive", "lease.sh"], cwd=folder).stdout.strip()


def jobs(slurm: SlurmCluster) -> list[str]:
    """Jobs that have not ended."""
    return slurm.run(["squeue", "--noheader", "--format=%i"]).stdout.split()


def node_of(slurm: SlurmCluster, job: str) -> str:
    return slurm.run(["squeue", "--noheader", f"--jobs={job}", "--format=%N"]).stdout.strip()


def preempt(slurm: SlurmCluster, folder: Path, node: str) -> str:
    """Submit a job that takes a node from its lease; returns its number."""
    taking = [f"--partition={URGENT}", f"--nodelist={node}", "--exclusive", "--wrap=sleep 99"]
    return slurm.run(["sbatch", "--parsable", *taking], cwd=folder).stdout.strip()


def trained(folder: Path, trial: int) -> list[int]:
    """Epochs of a trial, in the order in which they were trained."""
    return [epoch for number, epoch, _, _ in epochs(folder) if number == trial]


def test_leases_come_and_go_while_a_search_runs(make_slurm: Callable[..., SlurmCluster], tmp_path: Path) -> None:
    slurm = make_slurm(2)
    tmp_path.chmod(0o700)
    words = ["--pool", "leases", "--workers", "1,2", "--trials", "2", "--epochs", "9", "--min-epochs", "9"]
    with search(slurm.cluster, tmp_path, *words, script=GATED) as process:

        def wait(condition: Callable[[], bool], what: str) -> None:
            until(lambda: condition() or process.poll() is not None, what, tmp_path)
            assert condition(), (tmp_path / "said.txt").read_text()

        wait((tmp_path / "run" / "pool" / "run.json").exists, "for the search")
        first = lend(slurm, tmp_path)
        wait(lambda: trained(tmp_path, 0) == [1, 2, 3], "for the first lease")
        second = lend(slurm, tmp_path)
        wait(lambda: trained(tmp_path, 1) == list(range(1, 10)), "for the second lease")
        wait(lambda: "trial 0: 1 -> 2 workers" in (tmp_path / "said.txt").read_text(), "for trial 0 to grow")
        shown = slurm.run([sys.executable, "-m", "farandole", "ps", "run/pool"], cwd=tmp_path).stdout
        assert "search run: 2 workers; 2/2 trials: 1 running, 1 complete" in shown
        assert shown.count(" 1         0") == 2, shown
        [lost, kept] = [node_of(slurm, job) for job in (first, second)]
        preempts = preempt(slurm, tmp_path, lost)
        wait(lambda: first not in jobs(slurm), "for the end of the first lease")
        (tmp_path / "gate-0-3").touch()
        wait(lambda: trained(tmp_path, 0) == [1, 2, 3, 4, 5, 6], "for the trial to go on elsewhere")
        assert [host for number, _, host, _ in epochs(tmp_path) if number == 0] == [lost] * 3 + [kept] * 3
        assert "trial 0 goes on" not in (tmp_path / "said.txt").read_text(), "it was to move with its state"
        slurm.run(["scancel", preempts])
        slurm.run(["scancel", "--signal=TERM", second])
        wait(lambda: second not in jobs(slurm), "for the end of the second lease")
        (tmp_path / "gate-0-6").touch()
        assert process.poll() is None, "it waits for others"
        third = lend(slurm, tmp_path)
        until(lambda: process.poll() is not None, "for the end", tmp_path)
        assert process.returncode == 0, (tmp_path / "said.txt").read_text()
    until(lambda: third not in jobs(slurm), "for the end of the last lease", tmp_path)
    assert trained(tmp_path, 0) == list(range(1, 10)), "an epoch was lost"
    entries = [json.loads(line) for line in (tmp_path / "run" / "trials.log").read_text().splitlines()]
    assert [each["state"] for each in entries if each["op_code"] == 6] == [1, 1]
    assert not (tmp_path / "run" / "pool" / "run.json").exists()
    assert "the pool has 1 workers; before: 0" in (tmp_path / "said.txt").read_text()
