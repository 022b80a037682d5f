"""Moving arrays in and out of one piece of memory, and the joined rank's contributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.native import core
from farandole.runtime.lanes.packing import batches, identity, pack, scratch, unpack
from farandole.testing import reference


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_batches_keep_the_order_and_the_limit(sizes: list[int], limit: int) -> None:
    arrays = [Array(0, n, DType.UINT8) for n in sizes]
    parts = batches(arrays, limit)
    assert [a for part in parts for a in part] == arrays
    assert all(sum(a.nbytes for a in part) <= limit or len(part) == 1 for part in parts)


def test_what_is_packed_comes_back() -> None:
    kept = [np.arange(5.0), np.arange(0.0), np.arange(3.0) + 10]
    arrays = [Array(x.ctypes.data, x.size, DType.FLOAT64, x) for x in kept]
    memory = scratch(DType.FLOAT64, 8)
    pack(arrays, memory.address)
    np.testing.assert_array_equal(reference.view(memory), [0, 1, 2, 3, 4, 10, 11, 12])
    for x in kept:
        x[:] = -1
    unpack(memory.address, arrays)
    np.testing.assert_array_equal(np.concatenate(kept), [0, 1, 2, 3, 4, 10, 11, 12])


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.label)
@pytest.mark.parametrize("op", [op for op in ReduceOp if op is not ReduceOp.ADASUM], ids=lambda op: op.label)
def test_an_identity_changes_nothing(dtype: DType, op: ReduceOp) -> None:
    if not reference.legal(dtype, op) or (dtype is DType.BOOL and op is ReduceOp.AVERAGE):
        pytest.skip("not a reduction, or one that divides")
    values = reference.encode(dtype, [1, 0, 1, 1])
    array = identity(dtype, 4, Reduction(op))
    neutral = reference.view(array)
    if op is ReduceOp.AVERAGE:
        np.testing.assert_array_equal(neutral, np.zeros_like(neutral))
    else:
        assert reference.same(dtype, reference.reduce(dtype, op, [values, neutral]), values)


@pytest.mark.parametrize("prescale", [2.0, 0.5, 1e-3, -1.0, -0.25, 0.0, -0.0])
@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.label)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX], ids=lambda op: op.label)
def test_an_identity_changes_nothing_although_it_is_multiplied(dtype: DType, op: ReduceOp, prescale: float) -> None:
    """As the engine multiplies what a rank that has joined contributes, as well as what the others do."""
    if not reference.legal(dtype, op):
        pytest.skip("not a reduction")
    array, alone, together = identity(dtype, 5, Reduction(op, prescale)), scratch(dtype, 5), scratch(dtype, 5)
    for result in (alone, together):
        reference.view(result)[:] = reference.encode(
            dtype, [1, 0, 5, 0, 1] if dtype is DType.BOOL else [1, 0, 5, 7, 100]
        )
    core.reduce([alone.address], alone.address, 5, dtype, op, prescale, 1.0, 1)
    core.reduce([together.address, array.address], together.address, 5, dtype, op, prescale, 1.0, 1)
    np.testing.assert_array_equal(
        reference.decode(dtype, reference.view(together)), reference.decode(dtype, reference.view(alone))
    )
