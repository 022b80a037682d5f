"""Decimation against a list of all points: no peak is lost, whatever comes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.monitor.decimation import Series

VALUES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(VALUES, max_size=400), st.integers(2, 9))
def test_buckets_hold_the_extremes_and_the_last_value_of_consecutive_points(values: list[float], most: int) -> None:
    series = Series(most)
    for step, value in enumerate(values):
        series.add(step, float(step), value)
    assert len(series) <= most
    begin = 0
    for bucket in series.buckets:
        own = values[begin : bucket.step + 1]
        numbers = [value for value in own if not math.isnan(value)]
        assert len(own) == series.width or bucket is series.buckets[-1]
        assert same(bucket.last, own[-1])
        assert same(bucket.low, min(numbers, default=math.nan))
        assert same(bucket.high, max(numbers, default=math.nan))
        begin = bucket.step + 1
    assert begin == len(values)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(st.integers(0, 300), st.integers(2, 9))
def test_it_tells_when_more_than_the_last_bucket_has_changed(count: int, most: int) -> None:
    series = Series(most)
    seen = list(series.buckets)
    for step in range(count):
        changed = series.add(step, 0.0, 1.0)
        kept = len(seen) - 1
        assert changed or series.buckets[: max(0, kept)] == seen[: max(0, kept)]
        seen = list(series.buckets)


def test_two_thousand_are_enough_for_a_million() -> None:
    series = Series()
    for step in range(100_000):
        series.add(step, 0.0, float(step == 77_777))
    assert 1000 <= len(series) <= 2000
    assert max(bucket.high for bucket in series.buckets) == 1.0
    with pytest.raises(ValueError, match="give 2 or more"):
        Series(1)
