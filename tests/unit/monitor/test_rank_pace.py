"""The rank that others wait for is named, and no other."""

from __future__ import annotations

import pytest

from farandole.control.watch_messages import MetricPoint
from farandole.monitor.folder import MemberRecord, PointRecord
from farandole.monitor.rank_pace import FEWEST_POINTS, RankPace


def steps(pace: RankPace, work_s: list[float], points: int = FEWEST_POINTS) -> RankPace:
    """Steps of all ranks together: each waits for the slowest."""
    for _ in range(points):
        for rank, mine_s in enumerate(work_s):
            values = {"step_s": max(work_s), "wait_s": max(work_s) - mine_s}
            pace.add_record(PointRecord(rank, 1, [MetricPoint(0.0, 0, 0, values)]))
    return pace


def test_the_slowest_is_named_with_how_much_slower_it_is() -> None:
    slowest = steps(RankPace(), [0.1, 0.1, 0.18, 0.09]).slowest()
    assert slowest is not None
    assert slowest.rank == 2
    assert slowest.times == pytest.approx(1.8)


@pytest.mark.parametrize(
    "pace",
    [
        RankPace(),
        steps(RankPace(), [0.1]),
        steps(RankPace(), [0.1, 0.11]),
        steps(RankPace(), [0.1, 0.5], FEWEST_POINTS - 1),
        steps(RankPace(), [0.0, 0.0]),
        steps(steps(RankPace(), [0.1, 0.1], 50), [0.1, 0.2], 1),  # one long step
    ],
)
def test_nobody_is_named_without_need(pace: RankPace) -> None:
    assert pace.slowest() is None


def test_another_generation_begins_anew() -> None:
    pace = steps(RankPace(), [0.1, 0.5])
    pace.add_record(MemberRecord(0.0, 2, ["a", "a"]))
    assert pace.slowest() is None
