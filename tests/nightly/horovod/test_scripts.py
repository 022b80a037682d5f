"""Scripts written for Horovod, unchanged, through ``farandole run --horovod``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import SUPPORT

pytest.importorskip("torch")

SCRIPTS = SUPPORT / "compat" / "scripts"


@pytest.mark.parametrize(
    "arguments", [(), ("--use-adasum", "--lr", "0.05"), ("--fp16-allreduce", "--gradient-predivide-factor", "2.0")]
)
def test_mnist_learns(arguments: Sequence[str], launch: Any) -> None:
    job = launch(2, SCRIPTS / "mnist.py", options=["--horovod"], arguments=arguments).ok()
    accuracies = [float(found) for found in re.findall(r"Accuracy: ([\d.]+)%", job.stdout)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 60, accuracies
    assert "[1]<stdout>" not in job.stdout
    assert job.stderr == ""


@pytest.mark.parametrize("size", [2, 3])
def test_numbers_warnings_and_refusals_are_horovods(size: int, launch: Any) -> None:
    job = launch(size, SCRIPTS / "horovods_numbers.py", options=["--horovod"]).ok()
    assert sorted(job.lines()) == [f"rank {rank} of {size} has seen Horovod's numbers" for rank in range(size)]
    (line,) = job.stderr.splitlines()
    assert "as in Horovod 0.28.1, whose package this script imports" in line


def test_warm_up_with_accumulation_checkpoints_and_resume(launch: Any, tmp_path: Path) -> None:
    first = launch(2, SCRIPTS / "resnet_warmup.py", options=["--horovod"], arguments=["--epochs", "1"]).ok()
    assert "models are equal: True" in first.stdout
    assert (tmp_path / "checkpoint-1.pt").exists()
    second = launch(2, SCRIPTS / "resnet_warmup.py", options=["--horovod"], arguments=["--epochs", "2"]).ok()
    assert "resumed after epoch 1" in second.stdout
    assert "epoch 1:" not in second.stdout
    assert "models are equal: True" in second.stdout


def test_elastic_training_goes_on_without_the_worker_that_was_killed(launch: Any) -> None:
    options = ["--horovod", "--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "60", "60"]
    job = launch(3, SCRIPTS / "elastic.py", options=options, arguments=["--die-at", "5"]).ok()
    epochs = re.findall(r"epoch (\d): (\d+) samples, accuracy ([\d.]+)", job.stdout)
    assert [(epoch, samples) for epoch, samples, _ in epochs] == [("0", "240"), ("1", "240"), ("2", "240")]
    assert float(epochs[-1][2]) > 0.8
    assert {line for line in job.lines() if "lr" in line} >= {"rank 0 of 2: lr 0.10", "rank 1 of 2: lr 0.10"}


def test_the_benchmark_counts_all_workers(launch: Any) -> None:
    job = launch(3, SCRIPTS / "synthetic_benchmark.py", options=["--horovod"], arguments=["--fp16-allreduce"]).ok()
    one, total = (float(found) for found in re.findall(r"CPU(?:\(s\))?: ([\d.]+) \+-", job.stdout))
    assert total == pytest.approx(3 * one, rel=0.01)


def test_children_find_it_too_and_nobody_without_the_flag(launch: Any) -> None:
    script = """
        import subprocess, sys
        code = "import horovod; print('child', 'farandole/compat/site' in horovod.__file__)"
        sys.exit(subprocess.call([sys.executable, "-c", code]))
    """
    assert launch(2, script, options=["--horovod"]).ok().lines() == ["child True"] * 2
    without = launch(1, script)
    assert without.code == 1
    assert "No module named 'horovod'" in without.stderr


def test_with_another_horovod_installed_one_line_says_which(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "installed" / "horovod").mkdir(parents=True)
    (tmp_path / "installed" / "horovod" / "__init__.py").write_text("__version__ = '0.27.0'\n")
    environment = {"PYTHONPATH": ":".join([str(tmp_path / "installed"), *sys.path])}
    script = "import horovod; print(horovod.__version__)"
    ours = launch(1, script, options=["--horovod"], environment=environment).ok()
    assert ours.lines() == ["0.28.1"]
    (line,) = ours.stderr.splitlines()
    assert "'import horovod' is Farandole in this job, not" in line
    assert launch(1, script, environment=environment).ok().lines() == ["0.27.0"]
