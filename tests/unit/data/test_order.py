"""Orders that are computed place by place are permutations, as random as they say, and the same for ever."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.planning.order import ExactOrder, SampleOrder, WindowOrder, group_of
from farandole.elastic.worker.sampler import SampleCursor
from farandole.errors import UsageError

SEEDS = st.integers(-(10**30), 10**30)
COUNTS = st.lists(st.integers(0, 12), max_size=40)

EXACT = [2, 0, 9, 6, 3, 5, 7, 1, 4, 8]
LONG = [39522919, 37925283, 16998669, 79150750]
WINDOW = [2, 1, 0, 3, 7, 4, 5, 8, 6]
GROUPS = [2, 1, 0, 7, 3, 5, 8, 4, 6]


def bounds_of(counts: list[int]) -> list[int]:
    return [0, *np.cumsum(counts, dtype=np.int64).tolist()]


def is_random(observed: np.ndarray[tuple[int], np.dtype[np.int64]], cells: int) -> bool:
    """Chi-square over equally likely ``cells``, within five deviations."""
    expected = observed.sum() / cells
    squares = float(((observed - expected) ** 2 / expected).sum()) + (cells - len(observed)) * float(expected)
    return bool(squares < cells - 1 + 5 * math.sqrt(2 * (cells - 1)))


@given(st.integers(0, 3000), SEEDS, st.integers(0, 5))
def test_an_exact_order_has_each_sample_at_one_place(length: int, seed: int, epoch: int) -> None:
    assert sorted(ExactOrder(length, seed, epoch)) == list(range(length))


@given(COUNTS, st.integers(1, 50), SEEDS, st.integers(0, 5))
def test_a_window_order_has_the_samples_of_a_few_pieces_at_a_time(
    counts: list[int], window: int, seed: int, epoch: int
) -> None:
    bounds = bounds_of(counts)
    order = WindowOrder(bounds, window, seed, epoch)
    samples = order[:]
    assert sorted(samples.tolist()) == list(range(bounds[-1]))
    assert sorted(order.pieces.tolist()) == list(range(len(counts)))
    pieces = np.searchsorted(bounds, samples, side="right") - 1
    windows = order.windows(np.arange(bounds[-1]))
    assert (np.diff(windows) >= 0).all()
    place = np.argsort(order.pieces)
    for number in set(windows.tolist()):
        ranks = {*place[pieces[windows == number]].tolist()}
        assert max(ranks) - min(ranks) < window
    for first, second in combinations(sorted(set(windows.tolist())), 2):
        assert not {*pieces[windows == first]} & {*pieces[windows == second]}


@given(st.integers(1, 5000), SEEDS, st.data())
def test_places_are_asked_for_in_every_way(length: int, seed: int, data: st.DataObject) -> None:
    order = ExactOrder(length, seed)
    samples = order.take(range(length))
    place = data.draw(st.integers(-length, length - 1))
    start, stop = data.draw(st.integers(-length, length)), data.draw(st.integers(-length, 2 * length))
    step = data.draw(st.sampled_from([-7, -1, 1, 2, 1000]))
    assert order[place] == samples[place]
    assert isinstance(order[place], int)
    assert order[start:stop:step].tolist() == samples[start:stop:step].tolist()
    assert list(order) == samples.tolist()
    assert list(reversed(order)) == samples[::-1].tolist()
    assert order.take(samples.reshape(1, -1)).shape == (1, length)


@pytest.mark.parametrize("length", [3, 4, 5, 6, 7])
def test_every_order_of_few_samples_is_equally_likely(length: int) -> None:
    """Seven lie in a square of nine, if nothing is done about it: half of all orders would be rare."""
    windows = 12 * math.factorial(length)
    order = WindowOrder(range(0, length * windows + 1, length), 1, seed=3)
    orders = order[:].reshape(windows, length) % length
    assert is_random(np.unique(orders, axis=0, return_counts=True)[1], math.factorial(length))


def test_seeds_choose_every_order_alike() -> None:
    orders = [tuple(ExactOrder(4, seed)) for seed in range(480)]
    assert is_random(np.unique(orders, axis=0, return_counts=True)[1], 24)


@pytest.mark.parametrize("length", [41, 1000, 4097, 10**8])
def test_samples_lie_anywhere_and_neighbours_anywhere_from_each_other(length: int) -> None:
    places = np.array([0, 1, length // 2, length - 1])
    found = np.array([ExactOrder(length, seed).take(places) for seed in range(1000)])
    for column in found.T:
        assert is_random(np.bincount(column * 8 // length, minlength=8), 8) or length == 41
    for first, second in combinations(found.T, 2):
        cells = min(20, length - 1)
        distance = (first - second) % length - 1
        assert is_random(np.bincount(distance * cells // (length - 1), minlength=cells), cells)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(ExactOrder(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


@given(COUNTS, st.integers(1, 50), st.integers(2, 7), SEEDS, st.integers(0, 5))
def test_an_order_by_groups_has_each_sample_once_and_pieces_of_each_group_in_turn(
    counts: list[int], window: int, groups: int, seed: int, epoch: int
) -> None:
    bounds = bounds_of(counts)
    order = WindowOrder(bounds, window, seed, epoch, groups=groups)
    whole = order[:]
    assert sorted(whole.tolist()) == list(range(bounds[-1]))
    chosen = np.arange(bounds[-1])[::-3]
    assert (order.take(chosen) == whole[chosen]).all()
    found = group_of(len(counts), groups)[order.pieces]
    sizes = np.bincount(found, minlength=groups)
    assert sizes.max() - sizes.min() <= 1
    for stop in range(len(found)):
        taken = np.bincount(found[:stop], minlength=groups)
        assert (np.abs(taken - stop * sizes / max(1, len(found))) <= 1).all()
    for position in range(0, bounds[-1], 5):
        passed, until = order.passed(position)
        before, later = set(order.pieces[:passed].tolist()), np.searchsorted(bounds, whole[position:], "right") - 1
        assert not before & set(later.tolist())
        assert until > position


def test_batches_have_as_many_samples_of_each_group() -> None:
    groups, rows = 4, 64
    order = WindowOrder(range(0, 4001, 10), 2 * groups, seed=5, groups=groups)
    group = group_of(400, groups)
    for start in range(0, 4000 - groups * rows, groups * rows):
        pieces = order[start : start + groups * rows] // 10
        counts = np.bincount(group[pieces], minlength=groups)
        assert counts.max() - counts.min() <= 2


def test_orders_are_the_same_for_ever() -> None:
    assert list(ExactOrder(10, 1, 0)) == EXACT
    assert ExactOrder(10**8, 1, 3)[:4].tolist() == LONG
    assert list(WindowOrder([0, 3, 5, 9], 2, 1, 0)) == WINDOW
    assert list(WindowOrder([0, 3, 5, 9], 2, 1, 0, groups=2)) == GROUPS
    assert (ExactOrder(10).name, WindowOrder([0, 3], 8).name) == ("exact-1", "window-1:8")


def test_no_list_is_made() -> None:
    order = ExactOrder(10**15, seed=1)
    places = np.array([0, 10**15 - 1, 123_456_789_012_345])
    found = order.take(places)
    assert len({*found.tolist()}) == 3
    assert (found < 10**15).all()
    assert order[10**15 - 1] == found[1]


def test_samples_of_a_piece_need_not_be_neighbours() -> None:
    members = [5, 1, 0, 4, 2, 3]
    order = WindowOrder([0, 2, 6], 1, seed=4, members=members)
    assert sorted(order) == list(range(6))
    first = [5, 1] if order.pieces[0] == 0 else [0, 4, 2, 3]
    assert {*order[: len(first)].tolist()} == {*first}


@pytest.mark.parametrize("order", [ExactOrder, lambda _length, *key: WindowOrder(range(0, 1002, 7), 8, *key)])
def test_a_cursor_goes_by_it(order: Callable[[int, int, int], SampleOrder]) -> None:
    cursor = SampleCursor(1001, order=order, seed=2, rank=1, size=3)
    committed: list[int] = []
    for batch in cursor.batches(global_batch_size=100):
        cursor.hand_out(batch)
        own = batch.positions(1, 3)
        assert cursor.own_indices() == list(cursor.indices[own.start : own.stop])
        committed.extend(cursor.indices[batch.start : batch.stop])
        cursor.advance(batch.samples)
    assert sorted(committed) == list(range(1001))
    cursor.set_epoch(1)
    assert sorted(cursor.remaining) == list(range(1001))
    assert list(cursor.remaining) != committed


def test_an_order_travels() -> None:
    orders: list[SampleOrder] = [ExactOrder(99, 3), WindowOrder([0, 9, 99], 2)]
    for order in orders:
        assert list(pickle.loads(pickle.dumps(order))) == list(order)


def test_wrong_places_and_pieces_are_refused() -> None:
    order = ExactOrder(10)
    for place in (10, -11):
        with pytest.raises(IndexError, match="of an order of 10 samples"):
            order[place]
    with pytest.raises(IndexError, match="places from -1 to 3"):
        order.take([3, -1])
    with pytest.raises(UsageError, match="window=0"):
        WindowOrder([0, 3], 0)
    for bounds in ([], [1, 2], [0, 3, 2]):
        with pytest.raises(UsageError, match="bounds must be"):
            WindowOrder(bounds, 1)


def losses(order: SampleOrder, stored: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Loss on a test set of softmax regression after an epoch over samples as they are ``stored``."""
    chance = np.random.default_rng(5)
    centres = chance.normal(size=(40, 16))
    labels = np.repeat(np.arange(40), 100)
    noise, others = chance.normal(size=(2, 4000, 16)) * 1.5
    samples, tests, weights = (centres[labels] + noise)[stored], centres[labels] + others, np.zeros((16, 40))

    def likelihoods(inputs: Any) -> Any:
        raised = np.exp((scores := inputs @ weights) - scores.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    for begin in range(0, 4000, 40):
        rows = order[begin : begin + 40]
        inputs, right = samples[rows], labels[stored][rows]
        weights -= 0.2 / 40 * inputs.T @ (likelihoods(inputs) - np.eye(40)[right])
    return float(-np.log(likelihoods(tests)[np.arange(4000), labels]).mean())


def test_a_window_after_packing_at_random_trains_as_a_full_shuffle() -> None:
    """Pieces of one class each, as sorted files have them, do not; an order of packed files is one of their own."""
    by_class, bounds = np.arange(4000), np.arange(0, 4001, 100)
    full = [losses(ExactOrder(4000, seed, 0), by_class) for seed in range(6)]
    packed = [losses(WindowOrder(bounds, 1, seed), ExactOrder(4000, seed + 9, 0)[:]) for seed in range(6)]
    in_classes = losses(WindowOrder(bounds, 1, 0), by_class)
    assert abs(np.mean(packed) - np.mean(full)) <= 3 * (np.std(full) + np.std(packed)) / math.sqrt(6)
    assert in_classes > max(full) + 10 * np.std(full)
