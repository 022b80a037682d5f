"""Decimation against a list of all points: no peak is lost, whatever comes in whatever order."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.monitor.decimation import Series

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)
POINTS = st.lists(st.tuples(st.integers(0, 5000), VALUES), max_size=300)


@given(POINTS, st.integers(2, 9))
def test_bins_hold_the_extremes_and_the_mean_of_their_steps(points: list[tuple[int, float]], most: int) -> None:
    series = Series(most)
    for time, (step, value) in enumerate(points):
        series.add(step, float(time), value)
    assert len(series) <= most
    numbers = [each.number for each in series.bins]
    assert numbers == sorted({step // series.width for step, _ in points})
    for each in series.bins:
        own = [(t, v) for t, (step, v) in enumerate(points) if step // series.width == each.number]
        finite = [v for _, v in own if math.isfinite(v)]
        assert each.time_s == own[-1][0]
        assert each.count == len(finite)
        if finite:
            assert (each.low, each.high) == (min(finite), max(finite))
            assert each.mean == pytest.approx(
                math.fsum(finite) / len(finite), rel=1e-6, abs=1e-3 * max(map(abs, finite))
            )
        else:
            assert math.isnan(each.mean)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 9)), max_size=20), max_size=20), st.integers(2, 9)
)
def test_a_copy_that_takes_in_what_has_changed_is_the_same(batches: list[list[tuple[int, int]]], most: int) -> None:
    series = Series(most)
    copy: list[tuple[object, ...]] = []
    for batch in batches:
        for step, value in batch:
            series.add(step, 0.0, value)
        told = series.columns(series.changed)
        fresh = list(zip(told["s"], told["m"], told.get("l", told["m"]), told.get("h", told["m"]), strict=True))
        copy[series.changed :] = fresh
        series.changed = len(series)
        assert copy == [(b.number * series.width, float(f"{b.mean:.7g}"), b.low, b.high) for b in series.bins]


def test_two_thousand_are_enough_for_a_hundred_thousand() -> None:
    series = Series()
    for step in range(100_000):
        series.add(step, 0.0, float(step == 77_777))
    assert 1000 <= len(series) <= 2000
    assert max(each.high for each in series.bins) == 1.0
    with pytest.raises(ValueError, match="give 2 or more"):
        Series(1)
