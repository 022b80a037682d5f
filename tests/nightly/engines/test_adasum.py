"""Adasum on more ranks than in the gate, so many that its tree has an odd rank twice."""

from __future__ import annotations

import pytest

from farandole.collective import DType
from tests.jobs.runtime.test_adasum import TOLERANCE, combined_by_the_tree


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: d.label)
@pytest.mark.parametrize("size", [4, 5])
def test_every_tensor_is_combined_by_the_tree(size: int, dtype: DType) -> None:
    combined_by_the_tree(size, dtype)
