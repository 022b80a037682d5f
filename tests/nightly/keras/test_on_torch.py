"""``farandole.keras`` on PyTorch: all cases on other ranks than in the gate, an elastic fit, the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import skip_without
from tests.support.keras.running import (
    environment,
    everything_on_ranks,
    nobody_can_tell_that_a_worker_was_killed,
    the_example_learns,
)

skip_without("keras")
skip_without("torch")


@pytest.mark.parametrize("size", [1, 3])
def test_everything_on_ranks(launch: Any, size: int) -> None:
    everything_on_ranks(launch, "torch", size)


def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(launch: Any, tmp_path: Path) -> None:
    nobody_can_tell_that_a_worker_was_killed(launch, tmp_path, "torch")


def test_the_example_learns(launch: Any) -> None:
    the_example_learns(launch, "torch")


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
