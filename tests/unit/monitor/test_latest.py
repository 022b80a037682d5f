"""Means of the latest numbers of a run: of the ranks that are there, whoever else has said something before."""

from __future__ import annotations

import math

import pytest

from farandole.control.watch_messages import MetricPoint
from farandole.monitor.folder import MemberRecord, PointRecord
from farandole.monitor.latest import Latest, Mean


def played(*story: tuple[int, int] | tuple[int, int, float]) -> Latest:
    """Generations, as their number and size, and losses, as generation, rank and value."""
    latest = Latest()
    for each in story:
        if len(each) == 2:
            latest.add_record(MemberRecord(0.0, each[0], ["a"] * each[1]))
        else:
            latest.add_record(PointRecord(each[1], each[0], [MetricPoint(0.0, 0, 0, {"loss": each[2]})]))
    return latest


@pytest.mark.parametrize(
    ("latest", "mean"),
    [
        (played((1, 2), (1, 0, 1.0), (1, 1, 3.0), (1, 0, 2.0)), Mean(2.5, 2)),
        (played((1, 3), *((1, rank, 1000.0) for rank in range(3)), (2, 1), (2, 0, 1.0)), Mean(1.0, 1)),
        (played((1, 2), (1, 0, 9.0), (1, 1, 9.0), (2, 1), (2, 0, 9.0), (3, 2), (3, 0, 1.0)), Mean(1.0, 1)),
        (played((2, 2), (2, 0, 9.0), (2, 1, 9.0), (1, 2), (1, 0, 1.0)), Mean(1.0, 1)),  # another session in a notebook
        (played((1, 2), (1, 0, 1.0), (2, 1), (2, 0, 2.0), (1, 1, 9.0)), Mean(2.0, 1)),  # it came late
        (played((1, 2), (1, 0, 1.0), (1, 1, 3.0), (2, 2)), Mean(2.0, 2)),  # nothing is said in the second yet
    ],
)
def test_a_mean_is_over_the_ranks_that_are_there(latest: Latest, mean: Mean) -> None:
    assert latest.mean("loss") == mean


def test_a_mean_of_what_is_not_finite_is_nan() -> None:
    value, ranks = played((1, 2), (1, 0, 1.0), (1, 1, math.inf)).mean("loss")
    assert math.isnan(value)
    assert ranks == 2
    assert math.isnan(Latest().mean("loss").value)
