"""The scripts of the slides of 2018, as they stand in ``examples/talks_2018``, through ``farandole run --horovod``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import lean, skip_without
from tests.support.paths import ROOT

TALKS = ROOT / "examples" / "talks_2018"
CHECKPOINTS = {
    "tensorflow_session.py": "train_logs/model.ckpt-500.index",
    "keras_fit.py": "checkpoint-6.h5",
}


@pytest.mark.parametrize(
    ("script", "needs", "least"),
    [
        ("tensorflow_session.py", "tensorflow", 0.93),
        ("pytorch.py", "torch", 0.90),
        ("keras_fit.py", "tensorflow", 0.95),
    ],
)
def test_a_script_of_2018_learns(launch: Any, tmp_path: Path, script: str, needs: str, least: float) -> None:
    skip_without(needs)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **lean("tensorflow", "sklearn")}
    job = launch(2, TALKS / script, options=["--horovod"], environment=environment, deadline_s=400.0).ok()
    found = re.search(r"test accuracy ([\d.]+) on 2 worker\(s\), models are equal: (\w+)", job.stdout)
    assert found, job.stdout
    assert float(found[1]) >= least
    assert found[2] == "True"
    if script in CHECKPOINTS:  # of rank 0, at the end of what two ranks share
        assert (tmp_path / "out" / "talks_2018" / CHECKPOINTS[script]).exists()


@pytest.mark.parametrize("script", sorted(TALKS.glob("*.py")), ids=lambda path: path.name)
def test_a_script_of_2018_marks_what_was_changed_and_added(script: Path) -> None:
    text = script.read_text()
    assert f"farandole run --horovod -np 2 python examples/talks_2018/{script.name}" in text.split('"""')[1]
    assert "# removed: " in text
    assert "# added: " in text
    assert "farandole" not in text.split('"""')[2]
