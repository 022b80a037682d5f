"""Small all-reduces of compiled graphs, on more ranks and in more programs than in the gate."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.graphs.fast_path import every_call_has_the_sum_of_all_ranks

HERE = [name for name in ("jax", "tensorflow") if find_spec(name)]
if not HERE:
    pytest.skip("neither JAX nor TensorFlow is installed: make setup", allow_module_level=True)


@pytest.mark.parametrize("frameworks", [HERE, *([name] for name in HERE)], ids=" and ".join)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_call_has_the_sum_of_all_ranks_whichever_way_it_takes(
    launch: Any, size: int, frameworks: list[str]
) -> None:
    every_call_has_the_sum_of_all_ranks(launch, size, frameworks, programs=20)
