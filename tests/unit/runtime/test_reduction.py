"""What becomes of a user's ``average``, ``op`` and factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farandole.collective import ReduceOp
from farandole.runtime.lanes.reduction import reduction


@pytest.mark.parametrize(
    ("average", "op"),
    [
        (None, ReduceOp.AVERAGE),
        (True, ReduceOp.AVERAGE),
        (1, ReduceOp.AVERAGE),
        (np.True_, ReduceOp.AVERAGE),
        (False, ReduceOp.SUM),
        (0, ReduceOp.SUM),
        (np.False_, ReduceOp.SUM),
    ],
)
def test_an_average_is_asked_for_by_what_is_true(average: Any, op: ReduceOp) -> None:
    found = reduction(average)
    assert (found.op, found.wrong) == (op, "")


@pytest.mark.parametrize("average", ["loss", 0.5, ReduceOp])
def test_what_is_no_truth_value_is_refused(average: Any) -> None:
    assert "it is True or False, and a name goes by name=" in (reduction(average).wrong or "")


def test_both_forms_together_are_refused() -> None:
    assert "keep op=" in (reduction(True, ReduceOp.SUM).wrong or "")
