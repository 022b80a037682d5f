"""The contract of bindings on two ranks; the checks of PyTorch and TensorFlow play it in their own jobs.

Keras, which stands on their adapters, and more ranks: ``tests/nightly/ranks``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bindings.contract import check
from tests.support.bindings.table import row_of

ROWS = ("numpy", "jax")


@pytest.mark.parametrize(("title", "job"), [(row, "2") for row in ROWS])
def test_a_binding_keeps_the_contract(title: str, job: str, tmp_path: Path) -> None:
    check(row_of(title), job, tmp_path)
