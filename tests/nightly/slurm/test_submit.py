"""``farandole submit`` on a real Slurm: its scripts are taken and run on the nodes, and refusals are told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launch.test_submit import ASKED
from workbench.cluster import SlurmCluster

REPORT = """
import os
print("rank", os.environ["FARANDOLE_RANK"], "of", os.environ["FARANDOLE_SIZE"], "on", os.uname().nodename,
      os.environ["WORD"], os.environ.get("SLURM_STALE", "nothing stale"), flush=True)
"""


@pytest.fixture(autouse=True)
def no_job_is_left(slurm: SlurmCluster) -> Iterator[None]:
    yield
    slurm.run(["scancel", "--user=root"])


def submit(slurm: SlurmCluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Submit from the head node, inside of what looks like a job, with no defaults of anybody."""
    stale = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "1", "SLURM_STALE": "stale"}
    environment = {**os.environ, **stale, "XDG_CONFIG_HOME": str(folder)}
    return slurm.run([sys.executable, "-m", "farandole", "submit", *words], cwd=folder, env=environment, check=False)


@pytest.mark.parametrize("name", ["plain", "elastic"])
def test_slurm_takes_a_script(slurm: SlurmCluster, tmp_path: Path, name: str) -> None:
    done = submit(slurm, tmp_path, "--test-only", *(word.replace("8", "4") for word in ASKED[name]))
    assert done.returncode == 0, done.stderr
    assert re.match(r"Job \d+ to start at ", done.stdout)


def test_a_job_runs_on_its_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    options = ("-np", "4", "-N", "2", "-t", "5", "--env", "WORD=two words", "--sbatch=--wait", "--start-timeout", "60")
    done = submit(slurm, tmp_path, *options, "python", "report.py")
    assert done.returncode == 0, done.stderr
    number = re.findall(r"submitted job (\d+); see it with: squeue -j \1; tail -F (\S+);", done.stdout)[0]
    lines = sorted((tmp_path / number[1]).read_text().splitlines())
    said = [line.partition(":")[2] for line in lines]
    assert said == [f"rank {r} of 4 on node{1 + r // 2} two words nothing stale" for r in range(4)]


def test_what_slurm_refuses_is_told_in_its_words(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "-np", "2", "-p", "nowhere", "python", "train.py")
    assert done.returncode == 2
    assert "farandole submit: Slurm refuses this job: " in done.stderr
    assert "invalid partition specified: nowhere" in done.stderr


@pytest.mark.parametrize(("ending", "status"), [("0", 0), ("3", 3)])
def test_the_output_of_a_job_that_is_waited_for_is_printed_and_its_status_returned(
    slurm: SlurmCluster, tmp_path: Path, ending: str, status: int
) -> None:
    script = f"echo begins; sleep 1; echo ends; exit {ending}"
    done = submit(
        slurm,
        tmp_path,
        "--wait",
        "-np",
        "1",
        "-t",
        "5",
        "--start-timeout",
        "60",
        "-o",
        "a b %j.txt",
        "bash",
        "-c",
        script,
    )
    assert done.returncode == status, done.stderr
    assert [line for line in done.stdout.splitlines() if "<stdout>" in line] == [
        f"[0]<stdout>:{word}" for word in ("begins", "ends")
    ]
    assert re.match(r"submitted job \d+; ", done.stderr)
    assert ("has ended (FAILED)" in done.stderr) == (status != 0)


def test_a_job_that_is_cancelled_while_it_is_waited_for_has_failed(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, tmp_path, "--wait", "-np", "1", "bash", "-c", 'scancel "$SLURM_JOB_ID"; sleep 600')
    assert done.returncode != 0
    assert "has ended (CANCELLED)" in done.stderr
