"""``farandole.mxnet`` in the environment of MXNet: the contract of bindings, training beside one worker, its rules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.launching import Launch, run_to_end
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S

FOLDER = SUPPORT / "mxnet"
ENGINE = {"MXNET_CPU_WORKER_NTHREADS": "4"}
"""More threads than one for MXNet's operators, which one alone would run in the order in which they are asked for."""


@pytest.mark.parametrize("kind", ["nd", "np"])
def test_it_keeps_the_contract_of_bindings(kind: str, launch: Launch, mxnet_python: str) -> None:
    finished = launch(2, FOLDER / "contract_job.py", arguments=[kind], environment=ENGINE, python=mxnet_python).ok()
    [one, other] = finished.lines()
    assert one == other
    assert one.endswith("cases passed")


@pytest.mark.parametrize("size", [2, 3])
def test_training_is_that_of_one_worker_on_the_joined_batch(size: int, launch: Launch, mxnet_python: str) -> None:
    assert launch(size, FOLDER / "training_job.py", python=mxnet_python).ok().lines() == []


def test_what_only_mxnet_has(launch: Launch, mxnet_python: str) -> None:
    finished = launch(2, FOLDER / "semantics_job.py", environment=ENGINE, python=mxnet_python).ok()
    assert len(finished.lines()) >= 20


def test_a_script_of_horovod_runs_unchanged(launch: Launch, mxnet_python: str) -> None:
    finished = launch(2, FOLDER / "scripts" / "horovod_job.py", options=["--horovod"], python=mxnet_python).ok()
    assert finished.lines() == ["trained"] * 2


def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(
    launch: Launch, mxnet_python: str, tmp_path: Path
) -> None:
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"]
    script, arguments = FOLDER / "elastic_job.py", [str(tmp_path), "2"]
    finished = launch(2, script, options=options, arguments=arguments, python=mxnet_python).ok()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, finished.stderr
    for found in results:
        assert found["generation"] >= 2  # 3, unless a survivor was slower than the newcomer
        for one, other in zip(found["values"], found["alone"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert results[0]["values"] == results[1]["values"]


def test_an_adapter_loads_no_binding_and_no_other_framework(mxnet_python: str, tmp_path: Path) -> None:
    script = "import sys, farandole.adapters.mxnet; print(*sys.modules)"
    loaded = set(run_to_end([mxnet_python, "-c", script], tmp_path, 60).ok().stdout.split())
    assert not {"farandole.torch", "farandole.numpy", "farandole.mxnet", "torch"} & loaded


def test_without_mxnet_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['mxnet'] = None; import farandole.mxnet"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "farandole.mxnet needs MXNet" in done.stderr
    assert "pip install 'farandole[mxnet]'" in done.stderr
