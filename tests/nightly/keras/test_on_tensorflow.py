"""``farandole.keras`` on TensorFlow: all cases on more ranks than in the gate, an elastic fit, the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import skip_without
from tests.support.keras.running import (
    everything_on_ranks,
    nobody_can_tell_that_a_worker_was_killed,
    the_example_learns,
)

skip_without("keras")
skip_without("tensorflow")


@pytest.mark.parametrize("size", [2])
def test_everything_on_ranks(launch: Any, size: int) -> None:
    everything_on_ranks(launch, "tensorflow", size)


def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(launch: Any, tmp_path: Path) -> None:
    nobody_can_tell_that_a_worker_was_killed(launch, tmp_path, "tensorflow")


def test_the_example_learns(launch: Any) -> None:
    the_example_learns(launch, "tensorflow")
