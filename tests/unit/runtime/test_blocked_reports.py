"""Who waits for whom, from what ranks say about collectives that they are inside of. Time is a number."""

from __future__ import annotations

import pytest

from farandole.control.messages import Blocked
from farandole.runtime.coordination.blocked_reports import AGREED, PAIRING, BlockedReports
from farandole.runtime.coordination.process_groups import ProcessGroups


def blocked(sequence: int = 7, seconds: float = 60.0, process_set: int = 0, lane: str = "p") -> Blocked:
    return Blocked(1, process_set, lane, sequence, f"step {sequence}", seconds)


def test_ranks_inside_a_planned_collective_wait_for_those_that_are_not() -> None:
    reports = BlockedReports(ProcessGroups(3), renewal_s=31.0)
    assert reports.add(0, blocked(), 100.0)
    assert reports.add(2, blocked(seconds=65.0), 100.0)
    (waiting,) = reports.waiting(100.0)
    assert waiting == (("blocked", 0, "p", 7), "step 7", 35.0, (0, 2), (1,), 31.0, 0.0)
    assert list(reports.waiting(132.0)) == []


def test_while_all_are_inside_what_they_agreed_on_nobody_waits() -> None:
    reports = BlockedReports(ProcessGroups(2), renewal_s=31.0)
    reports.add(0, blocked(lane=AGREED), 100.0)
    assert [waiting.missing for waiting in reports.waiting(100.0)] == [(1,)]
    reports.add(1, blocked(lane=AGREED), 100.0)
    assert list(reports.waiting(100.0)) == []


def test_a_later_collective_replaces_an_earlier_one() -> None:
    reports = BlockedReports(ProcessGroups(3), renewal_s=31.0)
    reports.add(0, blocked(7), 100.0)
    reports.add(0, blocked(8), 101.0)
    assert [waiting.what for waiting in reports.waiting(101.0)] == ["step 8"]


def test_lanes_of_one_process_set_are_told_apart() -> None:
    reports = BlockedReports(ProcessGroups(2), renewal_s=31.0)
    reports.add(0, blocked(7, lane="p"), 100.0)
    reports.add(0, blocked(7, lane="q"), 100.0)
    reports.add(1, blocked(7, lane="q"), 100.0)
    assert [(waiting.key[2], waiting.missing) for waiting in reports.waiting(101.0)] == [("p", (1,)), ("q", ())]


def test_ranks_that_pair_while_the_others_wait_for_them_elsewhere() -> None:
    reports = BlockedReports(ProcessGroups(3), renewal_s=31.0, patience_s=60.0)
    reports.add(1, blocked(2, lane=PAIRING), 100.0)
    reports.add(0, blocked(7, lane="p"), 100.0)
    assert reports.crossed(100.0) == {}, "rank 2 may come to both"
    reports.add(2, blocked(7, 59.0, lane="p"), 100.0)
    assert reports.crossed(100.0) == {}, "it has not waited for long"
    reports.add(2, blocked(7, 60.0, lane="p"), 101.0)
    assert reports.crossed(101.0) == {1: "step 2", 0: "step 7", 2: "step 7"}
    reports.add(1, blocked(7, lane="p"), 102.0)
    assert reports.crossed(102.0) == {}, "another thread has come there"
    reports.add(1, blocked(6, lane="p"), 103.0)
    assert reports.crossed(103.0), "in another collective"
    assert reports.crossed(132.0) == {}, "they have gone on"


def test_ranks_that_all_pair_and_those_in_other_sets_are_not_crossed() -> None:
    reports = BlockedReports(ProcessGroups(3, [[1, 2]]), renewal_s=31.0, patience_s=60.0)
    for rank in range(2):
        reports.add(rank, blocked(2, lane=PAIRING), 100.0)
    reports.add(2, blocked(2, lane=AGREED), 100.0)
    assert reports.crossed(100.0) == {}, "what was agreed on moves bytes"
    reports.add(2, blocked(2, lane="p", process_set=1), 100.0)
    assert set(reports.crossed(100.0)) == {0, 1, 2}
    reports.add(2, blocked(2, lane=PAIRING), 100.0)
    assert reports.crossed(100.0) == {}


@pytest.mark.parametrize(
    ("rank", "what"),
    [
        (2, blocked(process_set=1)),
        (0, blocked(process_set=9)),
        (0, blocked(seconds=-1.0)),
        (0, blocked(seconds=float("nan"))),
    ],
)
def test_impossible_blockages_are_refused(rank: int, what: Blocked) -> None:
    assert not BlockedReports(ProcessGroups(3, [[0, 1]]), 31.0).add(rank, what, 0.0)
