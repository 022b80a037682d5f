"""The kernels against NumPy: every dtype and op, conversions of half types bit by bit, and the refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from farandole.collective import DType, ReduceOp
from farandole.gradients.shard_sums import Shards, combine
from farandole.native import core
from farandole.testing import reference

OPS = [op for op in ReduceOp if op is not ReduceOp.ADASUM]
LEGAL = [(dtype, op) for dtype, op in itertools.product(DType, OPS) if reference.legal(dtype, op)]
BLOCK = 8192
"""Bytes that the reduction works on at once; lengths around it are where it could go wrong."""


def _address(values: reference.Values) -> int:
    return int(values.ctypes.data)


@pytest.mark.parametrize(("dtype", "op"), LEGAL)
def test_reduce(dtype: DType, op: ReduceOp) -> None:
    size = 4
    for count in (0, 1, 7, 64, BLOCK // dtype.itemsize - 1, 2 * BLOCK + 3):
        said = [reference.sample(dtype, count, seed) for seed in range(size)]
        out = np.zeros(count, said[0].dtype)
        divisor = size if op is ReduceOp.AVERAGE else 1
        core.reduce([_address(s) for s in said], _address(out), count, dtype, op, divisor=divisor)
        assert reference.same(dtype, out, reference.reduce(dtype, op, said))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 33])
def test_sums_are_a_tree_over_the_sources(size: int) -> None:
    random = np.random.default_rng(size)
    count = BLOCK // 4 + 5
    said = {Shards(r, r + 1): random.normal(size=count).astype(np.float32) for r in range(size)}
    out = np.zeros(count, np.float32)
    core.reduce([_address(s) for s in said.values()], _address(out), count, DType.FLOAT32, ReduceOp.SUM)
    assert np.array_equal(out, combine(Shards(0, size), said, np.add))


@pytest.mark.parametrize(("dtype", "op"), LEGAL)
def test_what_fills_for_a_rank_that_has_nothing_changes_nothing(dtype: DType, op: ReduceOp) -> None:
    said = reference.sample(dtype, 100, 1)
    nothing = np.zeros_like(said)
    core.fill_identity(_address(nothing), 100, dtype, op)
    for order in ([said, nothing], [nothing, said]):
        into = order[0].copy()
        core.reduce_into(_address(into), _address(order[1]), 100, dtype, op)
        assert into.tobytes() == said.tobytes()


@pytest.mark.parametrize("dtype", DType)
def test_scale_and_divide(dtype: DType) -> None:
    for factor in (0.5, 3.0, -1.0 / 3):
        said = reference.sample(dtype, 100, 2)
        if dtype in (DType.UINT8, DType.UINT16) and factor < 0:
            continue
        scaled = said.copy()
        core.scale(_address(scaled), 100, dtype, factor)
        assert reference.same(dtype, scaled, reference.reduce(dtype, ReduceOp.SUM, [said], prescale=factor))
    divided = said.copy()
    core.divide(_address(divided), 100, dtype, 3)
    zeros = [np.zeros_like(said)] * 2
    expected = said if dtype is DType.BOOL else reference.reduce(dtype, ReduceOp.AVERAGE, [said, *zeros])
    assert reference.same(dtype, divided, expected)


def test_division_truncates_toward_zero_and_scaling_saturates() -> None:
    values = np.array([-7, 7, -(2**63), 2**63 - 1], np.int64)
    core.divide(_address(values), 4, DType.INT64, 2)
    assert values.tolist() == [-3, 3, -(2**62), 2**62 - 1]
    core.scale(_address(values), 4, DType.INT64, 1e30)
    assert values.tolist() == [-(2**63), 2**63 - 1, -(2**63), 2**63 - 1]
    small = np.array([3, 200], np.uint8)
    core.scale(_address(small), 2, DType.UINT8, -1.0)
    assert small.tolist() == [0, 0]
    core.fill(_address(small), 2, DType.UINT8, float("nan"))
    assert small.tolist() == [0, 0]


def test_every_float16_survives_the_way_through_float32() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    values = every.copy()
    core.scale(_address(values), values.size, DType.FLOAT16, 1.0)
    nan = np.isnan(every.view(np.float16))
    assert np.array_equal(values[~nan], every[~nan])
    assert np.isnan(values.view(np.float16)[nan]).all()


def test_sums_of_any_two_float16_round_like_numpy() -> None:
    random = np.random.default_rng(1)
    a, b = (random.integers(0, 1 << 16, 1 << 20, dtype=np.uint16).view(np.float16) for _ in range(2))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (a.astype(np.float32) + b.astype(np.float32)).astype(np.float16)
    total = a.copy()
    core.reduce_into(_address(total), _address(b), a.size, DType.FLOAT16, ReduceOp.SUM)
    nan = np.isnan(expected)
    assert np.array_equal(total[~nan].view(np.uint16), expected[~nan].view(np.uint16))
    assert np.isnan(total[nan]).all()


def test_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    # 1 + 2^-8 lies between 1 and the next bfloat16: to even, down. 1 + 3 * 2^-8 goes up.
    ones = np.array([0x3F80, 0x3F81, 0x7F80, 0x7FC0], np.uint16)
    halves = np.array([0x3B80, 0x3B80, 0xFF80, 0x3F80], np.uint16)
    core.reduce_into(_address(ones), _address(halves), 4, DType.BFLOAT16, ReduceOp.SUM)
    assert ones[:2].tolist() == [0x3F80, 0x3F82]
    assert np.isnan(reference.decode(DType.BFLOAT16, ones)[2:]).all()


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_minimum_and_maximum_keep_nan_of_either_side(op: ReduceOp) -> None:
    a, b = np.array([np.nan, 1, 1], np.float32), np.array([1, np.nan, 2], np.float32)
    core.reduce_into(_address(a), _address(b), 3, DType.FLOAT32, op)
    assert np.isnan(a[:2]).all()
    assert a[2] == (1 if op is ReduceOp.MIN else 2)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_adasum(dtype: DType) -> None:
    a, b = reference.sample(dtype, 1003, 3), reference.sample(dtype, 1003, 4)
    x, y = (reference.decode(dtype, v).astype(np.float64) for v in (a, b))
    assert core.adasum_dots(_address(a), _address(b), 1003, dtype) == pytest.approx((x @ x, x @ y, y @ y))
    out = np.zeros_like(a)
    core.adasum_combine(_address(a), _address(b), _address(out), 1003, dtype, 0.75, -0.5)
    assert reference.same(dtype, out, reference.encode(dtype, 0.75 * x - 0.5 * y))


def test_copies_may_overlap() -> None:
    values = np.arange(100_000, dtype=np.int64)
    core.copy(_address(values) + 8, _address(values), 8 * 99_999)
    assert values[0] == 0
    assert np.array_equal(values[1:], np.arange(99_999))


def test_what_no_kernel_serves_is_refused_by_name() -> None:
    two = np.zeros(2, np.complex64)
    with pytest.raises(ValueError, match="Min of complex64: complex numbers have no order"):
        core.reduce_into(_address(two), _address(two), 2, DType.COMPLEX64, ReduceOp.MIN)
    with pytest.raises(ValueError, match="Adasum of complex64"):
        core.adasum_dots(_address(two), _address(two), 2, DType.COMPLEX64)
    with pytest.raises(ValueError, match="no dtype has the number 13"):
        core.fill(_address(two), 2, 13, 0.0)
    with pytest.raises(ValueError, match="no reduction has the number 6"):
        core.reduce_into(_address(two), _address(two), 2, DType.FLOAT32, 6)
    with pytest.raises(ValueError, match="a divisor must be positive, got 0"):
        core.divide(_address(two), 2, DType.COMPLEX64, 0)
