"""Shares of a pool: nobody gets too few or too many, and nothing is given twice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.search.allot import Allotment, Noise, Running, Time, allot

noises = st.none() | st.builds(Noise, st.floats(0, 1e4) | st.just(math.inf), st.floats(0.5, 1e3))
running_trials = st.lists(
    st.builds(Running, st.integers(0, 99), st.integers(0, 4), st.floats(0, 1), noises),
    max_size=6,
    unique_by=lambda each: each.number,
)


def most_of(trial: Running, limits: tuple[int, int]) -> float:
    """Workers beyond which a trial gets none."""
    worth = math.inf if trial.noise is None else trial.noise.worth
    return max(limits[0], min(limits[1], worth))


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
    elif any(
        share.size < most_of(trial, (least, least + more)) for share, trial in zip(shares, sorted(running), strict=True)
    ):  # nothing is left over
        assert sum(share.size for share in shares) + begin * least == capacity


@given(running=running_trials, spare=st.integers(0, 20), least=st.integers(1, 3), more=st.integers(0, 6))
def test_none_has_more_workers_than_its_noise_scale_is_worth(
    running: list[Running], spare: int, least: int, more: int
) -> None:
    shares, _, _ = allot(running, 0, least * len(running) + spare, (least, least + more))
    for share, trial in zip(shares, sorted(running), strict=True):
        assert share.size <= most_of(trial, (least, least + more))
        if trial.noise is not None and share.size > least:  # without its last worker it would fall short
            assert (share.size - 1) * trial.noise.batch < trial.noise.high
        if "would not help" in share.reason:
            assert trial.noise is not None
            assert share.size * trial.noise.batch >= trial.noise.high


@given(running=running_trials, spare=st.integers(0, 20))
def test_what_noise_takes_from_one_the_others_get(running: list[Running], spare: int) -> None:
    with_noise, _, _ = allot(running, 0, len(running) + spare, (1, 5))
    without, _, _ = allot([each._replace(noise=None) for each in running], 0, len(running) + spare, (1, 5))
    for share, before, trial in zip(with_noise, without, sorted(running), strict=True):
        if trial.noise is None:
            assert share.size >= before.size


@given(running=running_trials, spare=st.integers(1, 12))
def test_winners_come_first(running: list[Running], spare: int) -> None:
    shares, _, _ = allot(running, 0, len(running) + spare, (1, 3))
    size = {share.number: share.size for share in shares}
    for a in running:
        for b in running:
            if (-a.rung, a.value) < (-b.rung, b.value) and most_of(a, (1, 3)) >= most_of(b, (1, 3)):
                assert size[a.number] >= size[b.number]


def test_a_winner_gets_the_workers_of_losers() -> None:
    shares, begin, why = allot([Running(7, 2, 0.1)], 0, 4, (1, 4))
    assert (shares, begin, why) == ([Allotment(7, 4, "nothing waits, and 3 more workers are free")], 0, "")
    assert allot([Running(7, 2, 0.1)], 9, 4, (1, 4))[:2] == ([Allotment(7, 1, "6 trials wait for 1 workers each")], 3)


def test_a_winner_leaves_workers_that_would_not_help_it() -> None:
    shares, _, _ = allot([Running(7, 2, 0.1, Noise(100.0, 64.0)), Running(8, 1, 0.2)], 0, 8, (1, 4))
    assert shares[0] == Allotment(
        7, 2, "more would not help: its noise scale is 100 samples at most, and a worker takes 64"
    )
    assert shares[1] == Allotment(8, 4, "nothing waits, and 3 more workers are free")
    assert Noise(math.inf, 64.0).worth == Noise(math.nan, 64.0).worth == math.inf


def test_none_begins_that_cannot_come_to_its_first_rung() -> None:
    shares, begin, why = allot([Running(1)], 5, 4, (1, 2), Time(left_s=10, first_rung_s=30))
    assert (shares[0].size, begin) == (2, 0)
    assert why == "10 s are left, and a trial takes 30 s to its first rung"


@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf])
def test_one_that_has_diverged_is_the_worst(diverged: float) -> None:
    shares, _, _ = allot([Running(1, 1, diverged), Running(2, 1, 0.5)], 0, 3, (1, 2))
    assert [share.size for share in shares] == [1, 2]
