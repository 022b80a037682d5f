"""``farandole.keras`` on ranks, in elastic jobs, and under the names of Horovod, on each backend of Keras."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.frameworks import skip_without
from tests.support.keras.running import environment, everything_on_ranks
from tests.support.keras.sources import FOLDER, ROOT

skip_without("keras")

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed"))
    for name in ("torch", "tensorflow", "jax")
]
SIZES = {"torch": (1, 3, 4), "tensorflow": (2, 3), "jax": (2, 3)}


@pytest.mark.parametrize(("backend", "size"), [(backend, size) for backend in SIZES for size in SIZES[backend]])
def test_everything_on_ranks(launch: Any, backend: str, size: int) -> None:
    skip_without(backend)
    everything_on_ranks(launch, backend, size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(launch: Any, tmp_path: Path, backend: str) -> None:
    finished = launch(
        2,
        FOLDER / "elastic_training.py",
        options=["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"],
        arguments=[str(tmp_path)],
        environment=environment(backend),
        deadline_s=580.0,
    ).ok()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*.json")]
    assert len(results) == 2, finished.stderr
    for found, expected in results:
        assert found["generation"] >= 2  # 3, unless a survivor was slower than the newcomer
        assert all(one == other for one, other in found["numbers"]), found["numbers"]
        assert any(position not in (0, 96) for _, position in found["sizes"]), "no epoch began in its middle"
        batches = iter(found["seen"])
        for _ in range(found["epochs"]):  # in each epoch every sample is committed once, by whichever rank
            rows: list[int] = []
            while len(rows) < 96:
                rows += next(batches)
            assert sorted(rows) == list(range(96))
        assert next(batches, None) is None
        for one, other in zip(found["values"], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6)
    assert results[0][0]["values"] == results[1][0]["values"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_example_learns(launch: Any, backend: str) -> None:
    said = launch(
        2, ROOT / "examples" / "keras_digits.py", environment=environment(backend, "sklearn"), deadline_s=400.0
    )
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", said.ok().stdout)
    assert found
    assert float(found[1]) > 0.9


def test_ranks_that_wait_for_each_other_without_graphs_are_told_within_seconds(launch: Any) -> None:
    """With a new optimizer on one rank alone: on PyTorch no thread is there that could bring what is missing."""
    skip_without("torch")
    script = """
        import keras
        import numpy as np
        import farandole.keras as hvd
        hvd.init()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

        def compile():
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")

        compile()
        batch = np.ones((4, 4), np.float32), np.ones((4, 2), np.float32)
        model.train_on_batch(*batch)
        if hvd.rank() == 0:
            compile()
        try:
            model.train_on_batch(*batch)
        except hvd.elastic.HorovodInternalError as error:  # a StallError, had it taken as long as one is waited for
            print(type(error).__name__)
        """
    told = {**environment("torch"), "FARANDOLE_STALL_SHUTDOWN_S": "40"}
    assert launch(2, script, environment=told, deadline_s=400.0).ok().lines() == ["MismatchError"] * 2
