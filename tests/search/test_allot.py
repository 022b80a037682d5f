"""Shares of a pool: nobody gets too few or too many, and nothing is given twice."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from farandole.search.allot import Allotment, Running, Time, allot

running_trials = st.lists(
    st.builds(Running, st.integers(0, 99), st.integers(0, 4), st.floats(0, 1)), max_size=6, unique_by=lambda r: r.number
)


@given(
    running=running_trials,
    waiting=st.integers(0, 9),
    spare=st.integers(0, 12),
    least=st.integers(1, 3),
    more=st.integers(0, 4),
)
def test_shares_fit_the_pool(running: list[Running], waiting: int, spare: int, least: int, more: int) -> None:
    capacity = least * len(running) + spare
    shares, begin, _ = allot(running, waiting, capacity, (least, least + more))
    assert [share.number for share in shares] == sorted(each.number for each in running)
    assert all(least <= share.size <= least + more and share.reason for share in shares)
    assert 0 <= begin <= waiting
    assert sum(share.size for share in shares) + begin * least <= capacity
    if begin < waiting:  # then none has more than it must, and no worker is idle that could begin one
        assert all(share.size == least for share in shares)
        assert capacity - least * (len(running) + begin) < least
    elif shares and any(share.size < least + more for share in shares):  # nothing is left over
        assert sum(share.size for share in shares) + begin * least == capacity


@given(running=running_trials, spare=st.integers(1, 12))
def test_winners_come_first(running: list[Running], spare: int) -> None:
    shares, _, _ = allot(running, 0, len(running) + spare, (1, 3))
    size = {share.number: share.size for share in shares}
    for a in running:
        for b in running:
            if (-a.rung, a.value) < (-b.rung, b.value):
                assert size[a.number] >= size[b.number]


def test_a_winner_gets_the_workers_of_losers() -> None:
    shares, begin, why = allot([Running(7, 2, 0.1)], 0, 4, (1, 4))
    assert (shares, begin, why) == ([Allotment(7, 4, "nothing waits, and 3 more workers are free")], 0, "")
    assert allot([Running(7, 2, 0.1)], 9, 4, (1, 4))[:2] == ([Allotment(7, 1, "6 trials wait for 1 workers each")], 3)


def test_none_begins_that_cannot_come_to_its_first_rung() -> None:
    shares, begin, why = allot([Running(1)], 5, 4, (1, 2), Time(left_s=10, first_rung_s=30))
    assert (shares[0].size, begin) == (2, 0)
    assert why == "10 s are left, and a trial takes 30 s to its first rung"


def test_nan_is_the_worst() -> None:
    shares, _, _ = allot([Running(1, 1, math.nan), Running(2, 1, 0.5)], 0, 3, (1, 2))
    assert [share.size for share in shares] == [1, 2]
