"""Small all-reduces of compiled graphs on ranks: those that meet without Python, and those that do not."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.frameworks import lean
from tests.support.paths import SUPPORT

SCRIPT = SUPPORT / "graphs" / "on_ranks.py"
LARGE = bool(os.environ.get("LARGE"))  # see ``make large``
HERE = [name for name in ("jax", "tensorflow") if find_spec(name)]
if not HERE:
    pytest.skip("neither JAX nor TensorFlow is installed: make setup", allow_module_level=True)


@pytest.mark.parametrize("frameworks", [HERE, *([name] for name in HERE)] if LARGE else [HERE], ids=" and ".join)
@pytest.mark.parametrize("size", [1, 2, 3, 4] if LARGE else [2])
def test_every_call_has_the_sum_of_all_ranks_whichever_way_it_takes(
    launch: Any, size: int, frameworks: list[str]
) -> None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **lean(*frameworks)}
    programs = 20 if LARGE else 2
    job = launch(size, SCRIPT, arguments=[str(programs), *frameworks], environment=environment, deadline_s=580.0).ok()
    counts = [tuple(map(int, line.split())) for line in job.lines()]
    assert len(counts) == programs
    assert all(met < calls for calls, met in counts)
    assert any(met for _, met in counts) or size == 1
