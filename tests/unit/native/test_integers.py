"""Averages of integers, and integers with a factor, against Python's integers and fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farandole.collective import DType, ReduceOp
from farandole.native import core

INTEGERS = [DType.UINT8, DType.INT8, DType.UINT16, DType.INT16, DType.INT32, DType.INT64]
TOP = 2**63 - 1


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.label)
    return int(limits.min), int(limits.max)


def _limited(value: int, dtype: DType) -> int:
    low, high = _limits(dtype)
    return min(max(value, low), high)


def _reduce(
    dtype: DType, op: ReduceOp, values: list[int], prescale: float = 1.0, postscale: float = 1.0, divisor: int = 1
) -> int:
    arrays = [np.array([value], dtype.label) for value in values]
    out = np.zeros(1, dtype.label)
    core.reduce([a.ctypes.data for a in arrays], out.ctypes.data, 1, dtype, op, prescale, postscale, divisor)
    return int(out[0])


@st.composite
def contributions(draw: st.DrawFn) -> tuple[DType, list[int]]:
    dtype = draw(st.sampled_from(INTEGERS))
    low, high = _limits(dtype)
    value = st.one_of(st.integers(low, high), st.sampled_from([low, high, 0, 1, high // 2 + 1]))
    return dtype, draw(st.lists(value, min_size=1, max_size=9))


@given(contributions())
@example((DType.INT8, [127, 127, 127]))
@example((DType.INT64, [TOP, TOP]))
@example((DType.INT64, [-TOP - 1] * 9))
def test_an_average_is_the_truncated_quotient_of_the_true_sum(said: tuple[DType, list[int]]) -> None:
    dtype, values = said
    mean = int(Fraction(sum(values), len(values)))
    assert _reduce(dtype, ReduceOp.AVERAGE, values, divisor=len(values)) == mean


@given(contributions(), st.integers(-(2**53), 2**53))
@example((DType.INT64, [2**53 + 1]), 3)
def test_whole_factors_are_exact(said: tuple[DType, list[int]], factor: int) -> None:
    dtype, values = said
    assert _reduce(dtype, ReduceOp.SUM, values, postscale=factor) == _expected(dtype, sum(values), factor)
    scaled = [min(max(v * factor, -TOP - 1), TOP) if factor != 1 else v for v in values]
    assert _reduce(dtype, ReduceOp.SUM, values, prescale=factor) == _expected(dtype, sum(values), factor, sum(scaled))


def _expected(dtype: DType, total: int, factor: int, scaled: int | None = None) -> int:
    if factor != 1:
        return _limited(total * factor if scaled is None else scaled, dtype)
    low, high = _limits(dtype)  # without a factor sums wrap around
    return (total - low) % (high - low + 1) + low


@given(contributions(), st.integers(2, 10**6))
@example((DType.INT64, [2**53 + 1, 2**53 + 2]), 3)
def test_one_over_n_divides(said: tuple[DType, list[int]], n: int) -> None:
    dtype, values = said
    for sign in (1, -1):
        total = int(Fraction(sum(values), sign * n))
        assert _reduce(dtype, ReduceOp.SUM, values, postscale=sign / n) == _limited(total, dtype)
        scaled = sum(int(Fraction(v, sign * n)) for v in values)
        assert _reduce(dtype, ReduceOp.SUM, values, prescale=sign / n) == _limited(scaled, dtype)


@given(contributions(), st.integers(1, 2**53 - 1), st.integers(1, 60), st.sampled_from([1.0, -1.0]))
def test_other_factors_multiply_in_float64(
    said: tuple[DType, list[int]], mantissa: int, exponent: int, sign: float
) -> None:
    dtype, [value, *_] = said
    factor = sign * mantissa / 2**exponent
    if factor == int(factor) or (round(1 / factor) and 1 / round(1 / factor) == factor):
        return
    expected = int(value * factor)
    assert _reduce(dtype, ReduceOp.SUM, [value], postscale=factor) == _limited(expected, dtype)


@given(contributions(), st.sampled_from([2.0, -3.0, 0.5, -0.25]))
def test_order_and_products_of_scaled_contributions(said: tuple[DType, list[int]], factor: float) -> None:
    dtype, values = said
    scaled = [min(max(int(Fraction(v) * Fraction(factor)), -TOP - 1), TOP) for v in values]
    assert _reduce(dtype, ReduceOp.MIN, values, prescale=factor) == _limited(min(scaled), dtype)
    assert _reduce(dtype, ReduceOp.MAX, values, prescale=factor) == _limited(max(scaled), dtype)
    total = scaled[0]
    for each in scaled[1:]:
        total = min(max(total * each, -TOP - 1), TOP)
    assert _reduce(dtype, ReduceOp.PRODUCT, values, prescale=factor) == _limited(total, dtype)


@pytest.mark.parametrize("factor", [float("inf"), float("-inf"), float("nan"), 0.0, 1e300, 5e-324])
def test_factors_without_measure(factor: float) -> None:
    found = [_reduce(DType.INT32, ReduceOp.SUM, [v], postscale=factor) for v in (-5, 0, 5)]
    low, high = _limits(DType.INT32)
    big = {float("inf"): [low, 0, high], 1e300: [low, 0, high], float("-inf"): [high, 0, low]}
    assert found == big.get(factor, [0, 0, 0])
