"""``farandole.tensorflow`` on other numbers of ranks, without its native operation, and under the name of Horovod."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.frameworks import lean, skip_without
from tests.support.paths import ROOT, SUPPORT

skip_without("tensorflow")

FOLDER = SUPPORT / "tensorflow"
EXAMPLE = ROOT / "examples" / "tensorflow_digits.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", **lean("tensorflow")}


@pytest.mark.parametrize("size", [1, 3, 4])
def test_everything_on_ranks(launch: Any, size: int) -> None:
    finished = launch(size, FOLDER / "on_ranks.py", environment=QUIET, deadline_s=580.0).ok()
    cases = re.findall(r"^@case\ndef (\w+)", (FOLDER / "on_ranks.py").read_text(), re.MULTILINE)
    cases += re.findall(r"^def (\w+)\(\) -> None", (FOLDER / "pairing.py").read_text(), re.MULTILINE)
    assert finished.lines() == sorted(cases)


def test_sessions_where_eager_execution_is_off_the_slow_way(launch: Any) -> None:
    finished = launch(2, FOLDER / "sessions.py", arguments=["--slowly"], environment=QUIET, deadline_s=400.0).ok()
    cases = re.findall(r"^    (\w+),$", (FOLDER / "sessions.py").read_text(), re.MULTILINE)
    assert len(cases) == 5
    assert finished.lines() == sorted(cases)


def test_the_slow_way_is_right_too(launch: Any) -> None:
    """Where the native operation cannot be had."""
    finished = launch(2, FOLDER / "on_ranks.py", arguments=["--slowly"], environment=QUIET, deadline_s=580.0).ok()
    assert "verbs_of_a_graph_are_those_of_eager_tensors" in finished.stdout


def test_matching_by_order_of_arrival_would_be_found(launch: Any) -> None:
    """The stress test fails once all calls have one name and resource, and meet in the order of their arrival."""
    finished = launch(2, FOLDER / "on_ranks.py", arguments=["--by-arrival"], environment=QUIET, deadline_s=580.0)
    assert finished.code == 1
    assert "independent_collectives_of_a_graph_are_matched_by_name" in finished.stderr


def test_gradients_are_horovods_under_its_name_and_derivatives_under_ours(launch: Any) -> None:
    job = launch(3, FOLDER / "horovods_gradients.py", options=["--horovod"], environment=QUIET, deadline_s=580.0).ok()
    names = ("farandole.tensorflow", "horovod.tensorflow")
    assert job.lines() == sorted(f"rank {rank} of 3: {name}" for rank in range(3) for name in names)


@pytest.mark.parametrize("module", ["farandole.tensorflow", "horovod.tensorflow"])
def test_optimizers_of_keras_are_distributed_in_loops_and_in_fit(launch: Any, module: str) -> None:
    script = FOLDER / "keras_optimizers.py"
    environment = {**QUIET, "KERAS_BACKEND": "tensorflow"}
    options = ["--horovod"] if module.startswith("horovod") else []
    job = launch(2, script, options=options, arguments=[module], environment=environment, deadline_s=580.0).ok()
    cases = re.findall(r"^    (\w+),$", script.read_text(), re.MULTILINE)
    assert len(cases) == 5
    assert job.lines() == sorted(cases)


@pytest.mark.parametrize("options", [[], ["--horovod"]])
def test_the_example_learns(launch: Any, options: list[str]) -> None:
    """Under the name of Horovod; the tutorial's, which the tests of the documentation run, under ours."""
    environment = {**QUIET, **lean("tensorflow", "sklearn")}
    said = launch(2, EXAMPLE, options=options, environment=environment, deadline_s=400.0)
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", said.ok().stdout)
    assert found
    assert float(found[1]) > 0.9
