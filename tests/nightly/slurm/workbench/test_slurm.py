"""Slurm on the hosts of a cluster does what Slurm does elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from workbench.cluster import SlurmCluster, needs


def test_a_step_runs_on_every_node(slurm: SlurmCluster) -> None:
    assert sorted(slurm.run(["srun", "-N2", "hostname"]).stdout.split()) == ["node1", "node2"]
    told = slurm.run(["srun", "-N2", "-n4", "--ntasks-per-node=2", "sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"])
    assert sorted(told.stdout.splitlines()) == ["0 node1", "1 node1", "2 node2", "3 node2"]
    assert slurm.run(["srun", "-N2", "sh", "-c", "exit 3"], check=False).returncode == 3


def test_an_allocation_runs_commands_of_its_own(slurm: SlurmCluster) -> None:
    done = slurm.run(["salloc", "-N2", "sh", "-c", "hostname; scontrol show hostnames; srun hostname"])
    head, *rest = done.stdout.split()
    assert head == "head"
    assert sorted(rest) == ["node1", "node1", "node2", "node2"]


def test_a_batch_job_writes_what_it_says(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nhostname\nsrun hostname\n")
    slurm.run(["sbatch", "--wait", "-N2", "--output=out.txt", str(script)], cwd=tmp_path)
    first, *rest = (tmp_path / "out.txt").read_text().split()
    assert (first, sorted(rest)) == ("node1", ["node1", "node2"])


def sleeps(slurm: SlurmCluster, node: str) -> bool:
    return any("sleep 1000" in words for words in slurm.cluster.processes(node).values())


def test_a_cancelled_job_is_gone_from_its_nodes(slurm: SlurmCluster) -> None:
    command = ["srun", "-N2", "--unbuffered", "--job-name=long", "sh", "-c", "echo up; exec sleep 1000"]
    job = slurm.cluster.popen("head", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with job:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in slurm.cluster.nodes] == ["up\n", "up\n"]
        assert all(sleeps(slurm, node) for node in slurm.cluster.nodes)
        slurm.run(["scancel", "--signal=TERM", "--name=long"])
        assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM
        job.stdout.read()
    slurm.run(["srun", "-N2", "--exclusive", "true"])  # waits for the nodes to be free again
    assert not any(sleeps(slurm, node) for node in slurm.cluster.nodes)


def test_another_slurm_is_on_its_own_and_its_node_comes_back_after_power_loss(slurm: SlurmCluster) -> None:
    with SlurmCluster(1, cpus=3) as other:
        assert other.run(["sinfo", "-h", "-o", "%D %c"]).stdout.split() == ["1", "3"]
        assert slurm.run(["sinfo", "-h", "-o", "%D %c"]).stdout.split() == ["2", "8"]
        other.cluster.kill("node1")
        other.boot("node1")
        assert other.cluster.processes("node1") == {}
        assert other.run(["srun", "hostname"]).stdout == "node1\n"


def test_a_daemon_that_forks_after_it_has_been_started_is_no_process_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As slurmctld does with slurmscriptd: on a busy machine that comes after all else."""
    for name in ("slurmctld", "slurmd"):
        late = tmp_path / name
        late.write_text(f"#!/bin/sh\n(sleep 1; exec {shutil.which(name, path=needs.search_path())}) &\n")
        late.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with SlurmCluster(1) as late_one:
        assert {host: late_one.cluster.processes(host) for host in late_one.cluster.hosts} == {"head": {}, "node1": {}}
        late_one.stop_controller()
        late_one.start_controller()
        late_one.run(["sh", "-c", "until sinfo; do sleep 0.1; done"])
        assert late_one.cluster.processes("head") == {}
        assert late_one.run(["srun", "hostname"]).stdout == "node1\n"
