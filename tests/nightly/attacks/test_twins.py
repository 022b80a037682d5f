"""Jobs of one user, started at the same moment in one folder, under the same names: none hears of another one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attacks.twins import DEADLINE_S, Twin
from workbench.cluster import HEAD, SlurmCluster

SCRIPT = """
import sys
import numpy as np
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

init()
job, size, do = float(sys.argv[1]), current().topology.size, NumpyCalls()
for count in 30 * (8, 100_000):
    values = np.full(count, job)
    do.allreduce(f"same {count}", values)
    assert (values == size * job).all(), values
print("fine", size, flush=True)
shutdown()
"""


def test_jobs_of_the_same_moment_do_not_hear_each_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = [sys.executable, "-m", "farandole", "run", "-np", "2"]
    jobs = [
        subprocess.Popen(
            [*run, *options, sys.executable, str(script), job], cwd=tmp_path, stdout=-1, stderr=subprocess.STDOUT
        )
        for job, options in (("1", []), ("7", []), ("11", ["--min-np", "1"]), ("13", ["--engine", "tcp"]))
    ]
    try:
        said = [job.communicate(timeout=DEADLINE_S)[0].decode() for job in jobs]
    except subprocess.TimeoutExpired:
        pytest.fail("not all of them ended")
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0] * len(jobs), said
    assert all(text.count("fine 2") == 2 for text in said), said
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def _play(folder: Path, twins: list[Twin]) -> None:
    try:
        for twin in twins:
            twin.until_up()
        one, other = (twin.holds() for twin in twins)
        assert {each.partition(" ")[0] for each in one} >= {"memory", "socket"}, one
        assert not one & other
        twins[0].kill()
        (folder / "go").touch()
        assert twins[1].end() == 0, twins[1].said
        assert twins[1].said.count("fine 2") == 2, twins[1].said
        twins[0].end()
    finally:
        for twin in twins:
            twin.kill()
            twin.process.wait(DEADLINE_S)
    left = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert left == {"script.py", "out", "up", "go"}


LOCAL = {
    "farandole run": ["farandole", "run", "-np", "2", sys.executable],
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


@pytest.mark.parametrize("how", LOCAL)
def test_twins_share_nothing_and_one_outlives_the_other(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-m", *LOCAL[how]]
    _play(tmp_path, [Twin(number, tmp_path, command, subprocess.Popen, os.environ) for number in (3, 5)])


@pytest.mark.parametrize("is_shared", [False, True], ids=["two allocations", "one allocation"])
def test_twins_of_srun_share_nothing_and_one_outlives_the_other(
    slurm: SlurmCluster, tmp_path: Path, is_shared: bool
) -> None:
    command = ["srun", "--ntasks=2", "--nodelist=node1"]
    if is_shared:
        done = slurm.run(["salloc", "--no-shell", "--ntasks=4", "--nodelist=node1"])
        command += [f"--jobid={done.stderr.split('job allocation ')[-1].split()[0]}", "--overlap"]
    start = functools.partial(slurm.cluster.popen, HEAD)
    try:
        _play(tmp_path, [Twin(number, tmp_path, [*command, sys.executable], start, {}) for number in (3, 5)])
    finally:
        slurm.run(["scancel", "--user=root"])
