"""Batch scripts of leases as golden files, and the form of ``--lease``."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.launch.leases.script import LeaseJob, LeaseShape, lease_script, parse_lease
from farandole.launch.sbatch.options import BatchOptions
from tests.support.paths import SUPPORT

GOLDEN = SUPPORT / "launch" / "lease_scripts"
ASKED = {
    "plain": LeaseJob("a1b2", "/home/me/runs/a1b2", parse_lease("1x4@1h")),
    "gpus": LeaseJob(
        "a1b2",
        "/scratch/my 100% runs/a1b2",
        parse_lease("2x8@1h30min,20min"),
        BatchOptions(
            job_name="train",
            nodes=4,
            time="24:00:00",
            partition="gpu,spot",
            account="project42",
            qos="long",
            cpus_per_task=8,
            mem="64G",
            gres="gpu:8",
            output="train.out",
            sbatch=["--constraint=a100"],
            modules=["CUDA/12.4"],
            setup=["ulimit -n 4096"],
            environment={"WORD": "two words", "HF_TOKEN": "hf_1"},
        ),
        "/home/me/venv/bin",
        ("/home/me/venv/bin/python", "-m", "farandole"),
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_script_is_its_golden_file(name: str) -> None:
    assert lease_script(ASKED[name]) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", ASKED)
def test_a_script_is_shell(name: str) -> None:
    done = subprocess.run(["bash", "-n", GOLDEN / f"{name}.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("1x4@1h", LeaseShape(1, 4, 60)),
        ("2x8@90min", LeaseShape(2, 8, 90)),
        ("1x4@1h,20min", LeaseShape(1, 4, 60, 20)),
        ("16x1@1d2h3min,1d", LeaseShape(16, 1, 1563, 1440)),
    ],
)
def test_a_lease_is_read(text: str, shape: LeaseShape) -> None:
    assert parse_lease(text) == shape
    assert shape.workers == shape.nodes * shape.workers_per_node


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has not this form"),
        ("4@1h", "it has not this form"),
        ("1x4", "it has not this form"),
        ("1x4@1h,20min,3min", "it has not this form"),
        ("0x4@1h", "it lends nothing"),
        ("1x0@1h", "it lends nothing"),
        ("1x4@60", "'60' is no time such as 45min, 1h, 1h30min or 2d"),
        ("1x4@1:00:00", "'1:00:00' is no time"),
        ("1x4@0min", "'0min' is no time"),
        ("1x4@1h,", "it has not this form"),
        ("1x4@20min,1h", "its least time, 1h, is longer than its time, 20min"),
    ],
)
def test_what_is_no_lease_is_refused_with_what_to_type(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--lease {text!r}: {told}")) as caught:
        parse_lease(text)
    assert "write NODESxWORKERS@TIME: 1x4@1h is" in str(caught.value)


@given(st.text(alphabet="0123456789x@hdmin,² "))
def test_any_text_is_a_lease_or_refused(text: str) -> None:
    try:
        shape = parse_lease(text)
    except UsageError:
        return
    assert shape.workers > 0
    assert shape.minutes >= max(1, shape.least_minutes)


def test_a_folder_that_no_script_can_name_is_refused() -> None:
    with pytest.raises(UsageError, match="write it without line breaks"):
        lease_script(LeaseJob("a", "/a\n#SBATCH --uid=0", LeaseShape(1, 1, 1)))
