"""Every sample of an epoch is committed once, for any schedule of faults and resizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.elastic.worker.sampler import GlobalBatch, SampleCursor, fixed, per_rank, sequential, shuffled
from farandole.elastic.worker.step_vote import PassedSamples, StepVote
from farandole.errors import MismatchError, UsageError

LENGTHS = st.integers(1, 60)
SIZES = st.integers(1, 7)


@dataclass(frozen=True)
class Event:
    """What happens after ``steps`` voted steps: a fault, with batches in flight, and another number of ranks."""

    steps: int
    prefetched: int
    size: int


EVENTS = st.lists(st.builds(Event, st.integers(0, 4), st.integers(0, 3), SIZES), max_size=8)


def committed(length: int, size: int, schedule: list[Event], **sizes: int) -> tuple[Counter[int], list[list[int]]]:
    """Run one epoch on simulated ranks; returns what was committed, and the global batch of each step."""
    state: dict[str, Any] = SampleCursor(length, seed=3).state_dict()
    counts: Counter[int] = Counter()
    batches: list[list[int]] = []
    for event in [*schedule, Event(10**6, 0, 1)]:
        ranks = [SampleCursor(length, seed=3, rank=rank, size=size) for rank in range(size)]
        for cursor in ranks:
            cursor.load_state_dict(state)
        planned = [list(cursor.batches(**sizes)) for cursor in ranks]
        assert all(each == planned[0] for each in planned)
        for batch in planned[0][: event.steps]:
            for cursor in ranks:
                cursor.hand_out(batch)
            own = [cursor.own_indices() for cursor in ranks]
            assert abs(max(map(len, own)) - min(map(len, own))) <= 1
            weights = [cursor.weigh() for cursor in ranks]
            assert weights == pytest.approx([len(each) * size / batch.samples for each in own])
            for cursor in ranks:
                cursor.advance(sum(each.samples() for each in ranks) if cursor is ranks[0] else batch.samples)
            batches.append(sorted(index for each in own for index in each))
            counts.update(batches[-1])
        state = ranks[0].state_dict()
        for batch in planned[0][event.steps : event.steps + event.prefetched]:
            ranks[-1].hand_out(batch)  # and the fault comes before the vote
        size = event.size
    return counts, batches


@given(LENGTHS, SIZES, EVENTS, st.integers(1, 9))
def test_each_sample_counts_once_with_batches_per_rank(
    length: int, size: int, schedule: list[Event], batch_size: int
) -> None:
    counts, _ = committed(length, size, schedule, batch_size=batch_size)
    assert counts == Counter(range(length))


@given(LENGTHS, SIZES, EVENTS, st.integers(1, 20))
def test_each_sample_counts_once_with_global_batches_which_are_always_the_same(
    length: int, size: int, schedule: list[Event], global_batch_size: int
) -> None:
    counts, batches = committed(length, size, schedule, global_batch_size=global_batch_size)
    assert counts == Counter(range(length))
    _, undisturbed = committed(length, 1, [], global_batch_size=global_batch_size)
    assert batches == undisturbed


@given(LENGTHS, SIZES, st.integers(1, 9), st.integers(0, 60))
def test_no_rank_is_left_without_a_batch(length: int, size: int, batch_size: int, cursor: int) -> None:
    batches = list(per_rank(cursor, length, size, batch_size))
    assert sum(batch.samples for batch in batches) == max(0, length - cursor)
    for batch in batches:
        slices = [batch.computed(rank, size) for rank in range(size)]
        assert all(batch.start <= part.start < part.stop <= batch.stop for part in slices)
        assert [len(batch.positions(rank, size)) for rank in range(size)] == batch.counts(size)
        if batch.samples >= size:
            assert all(batch.counts(size))
    if len(batches) > 1:
        assert all(batch.samples >= batch_size * size for batch in batches[:-1])
        assert all(min(batch.counts(size)) >= 1 for batch in batches)


@given(LENGTHS, SIZES, st.integers(0, 60), st.integers(1, 9))
def test_equal_beginnings_of_what_others_cut_into_batches_are_a_beginning_of_the_epoch(
    length: int, size: int, cursor: int, batch_size: int
) -> None:
    ranks = [SampleCursor(length, rank=rank, size=size) for rank in range(size)]
    position = min(cursor, length)
    for each in ranks:
        each.load_state_dict({"epoch": 0, "processed_num": position})
    strided = [each.strided() for each in ranks]
    assert len({len(each) for each in strided}) == 1
    taken = [index for each in strided for index in each[:batch_size]]
    for each in ranks:
        each.record(batch_size)
    assert set(taken) == set(ranks[0].indices[position : ranks[0].position])
    assert len(taken) - len(set(taken)) < size


def test_the_order_is_that_of_the_seed_and_the_epoch() -> None:
    assert sorted(shuffled(50, 1, 2)) == list(range(50))
    assert shuffled(50, 1, 2) == shuffled(50, 1, 2)
    assert len({tuple(shuffled(50, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    assert list(sequential(3, 1, 2)) == [0, 1, 2]


def test_an_epoch_that_is_under_way_is_not_begun_anew() -> None:
    cursor = SampleCursor(10, sequential)
    cursor.set_epoch(0)
    cursor.hand_out(GlobalBatch(0, 4))
    cursor.advance(4)
    cursor.set_epoch(0)
    assert list(cursor.remaining) == [4, 5, 6, 7, 8, 9]
    cursor.set_epoch(1)
    assert (cursor.epoch, cursor.position) == (1, 0)


def test_batches_in_flight_are_neither_committed_nor_handed_out_again() -> None:
    cursor = SampleCursor(10, sequential, size=2)
    cursor.hand_out(GlobalBatch(0, 4))
    assert cursor.position == 0
    assert next(cursor.batches(batch_size=2)) == GlobalBatch(4, 8)
    arrangement = cursor.arrangement
    cursor.rearrange(0, 3)
    assert cursor.arrangement != arrangement
    assert next(cursor.batches(batch_size=2)) == GlobalBatch(0, 6)


def test_contents_of_planned_batches_are_handed_out_until_the_workers_change() -> None:
    cursor = SampleCursor(9, order=sequential, size=2)
    loading = cursor.hand_out_with(cursor.batches(batch_size=2), ["a", "b"])
    assert next(loading) == "a"
    assert cursor.in_flight == [GlobalBatch(0, 4)]
    cursor.rearrange(0, 3)
    with pytest.raises(UsageError, match="began before the workers or the epoch changed"):
        next(loading)
    assert cursor.in_flight == []


def test_a_step_of_several_batches_weighs_them_together() -> None:
    cursor = SampleCursor(10, sequential, rank=1, size=2)
    cursor.hand_out(GlobalBatch(0, 4))
    cursor.hand_out(GlobalBatch(4, 7))
    assert cursor.weigh() == pytest.approx(3 * 2 / 7)
    assert cursor.samples() == 3
    cursor.advance(7)
    assert cursor.position == 7


def test_a_pass_without_new_batches_is_over_those_of_the_last_one() -> None:
    cursor = SampleCursor(10, sequential, rank=1, size=2)
    assert cursor.weigh() == 1.0
    cursor.hand_out(GlobalBatch(0, 3))
    assert [cursor.weigh(), cursor.weigh()] == pytest.approx([2 / 3, 2 / 3])
    cursor.advance(3)
    assert cursor.weigh() == pytest.approx(2 / 3)  # of another optimizer, which votes, too
    cursor.hand_out(GlobalBatch(3, 8))
    assert cursor.weigh() == pytest.approx(4 / 5)
    cursor.hand_out(GlobalBatch(8, 9), trains=False)
    assert cursor.weigh() == pytest.approx(4 / 5)
    cursor.rearrange(0, 2)
    assert cursor.weigh() == 1.0


def test_a_pass_is_over_the_samplers_that_have_handed_out_batches_since_the_last_one() -> None:
    step_vote, (one, other) = StepVote(), (SampleCursor(10, sequential, rank=1, size=2) for _ in range(2))
    step_vote.cursors = {"one": one, "other": other}
    one.hand_out(GlobalBatch(0, 3))
    assert step_vote.weigh() == pytest.approx(2 / 3)
    assert step_vote.passing() == (1, 3)
    other.hand_out(GlobalBatch(0, 5))
    assert step_vote.weigh() == pytest.approx(4 / 5)
    assert step_vote.passing() == (2, 5)


def test_samples_that_several_passes_use_count_once_in_a_step() -> None:
    step_vote, cursor, passed = StepVote(), SampleCursor(10, sequential, rank=1, size=2), PassedSamples()
    step_vote.cursors = {"it": cursor}
    cursor.hand_out(GlobalBatch(0, 3))
    passed.add(step_vote)
    passed.add(step_vote)
    assert passed.total == 3
    cursor.hand_out(GlobalBatch(3, 8))
    passed.add(step_vote)
    assert passed.total == 8
    passed.restart()
    assert passed.total == 0
    passed.add(step_vote)  # the same samples again, in the next step
    assert passed.total == 5


def test_ranks_that_took_other_batches_are_refused() -> None:
    cursor = SampleCursor(10, sequential, size=2)
    cursor.hand_out(GlobalBatch(0, 4))
    with pytest.raises(MismatchError, match="computed 6 samples in this step, and 4 were handed out"):
        cursor.advance(6)


def test_the_state_of_another_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="of a data set of 10 samples, and this one has 11"):
        SampleCursor(11).load_state_dict(SampleCursor(10).state_dict())
    cursor = SampleCursor(11, seed=1)
    cursor.load_state_dict(SampleCursor(11, seed=5).state_dict())
    assert cursor.indices == SampleCursor(11, seed=5).indices


def test_fixed_batches_end_with_what_is_left() -> None:
    assert list(fixed(0, 7, 3)) == [GlobalBatch(0, 3), GlobalBatch(3, 6), GlobalBatch(6, 7)]
    assert GlobalBatch(6, 7).counts(3) == [1, 0, 0]
    assert GlobalBatch(6, 7).computed(2, 3) == range(6, 7)


def test_a_pass_over_batches_of_two_samplers_is_weighed_once() -> None:
    """The gradient of the sum of two means, or of the mean over both batches: ranks have 3 and 2 samples of each."""
    weights = []
    for rank in range(2):
        step_vote = StepVote()
        step_vote.cursors = {name: SampleCursor(5, rank=rank, size=2) for name in ("labelled", "unlabelled")}
        for cursor in step_vote.cursors.values():
            cursor.hand_out(GlobalBatch(0, 5))
        weights.append(step_vote.weigh())
    assert weights == pytest.approx([3 * 2 / 5, 2 * 2 / 5])


def test_a_data_set_that_has_grown_or_shrunk_has_another_sampler() -> None:
    rows = list(range(10))
    sampler = EpochSampler(rows)
    rows.append(10)
    with pytest.raises(UsageError, match="has 11 samples, and had 10 when its sampler was made"):
        sampler.set_epoch(1)
    del rows[5:]
    with pytest.raises(UsageError, match="has 5 samples"):
        sampler.set_epoch(1)


def test_samples_that_are_left_out_count_as_done_and_weigh_nothing() -> None:
    """Rank 1 of 3 has 1 of 2 samples left; all ranks together have 4 of 6."""
    cursor = SampleCursor(9, sequential, rank=1, size=3)
    cursor.hand_out(GlobalBatch(0, 6))
    assert cursor.leave_out(1, 2) == 2
    assert cursor.weigh() == pytest.approx(1 * 3 / 4)
    assert cursor.own_indices() == [2, 3]
    assert cursor.left_out == 0  # not yet committed
    cursor.advance(6)
    assert (cursor.position, cursor.left_out) == (6, 2)
    other = SampleCursor(9, sequential)
    other.load_state_dict(cursor.state_dict())
    assert (other.position, other.left_out) == (6, 2)
    other.hand_out(GlobalBatch(6, 9))
    assert other.leave_out(3, 3) == 5
    assert other.passing() == (0, 1)
    assert other.weigh() == 0.0  # nothing is left of the step
    other.rearrange(0, 2)
    assert other.left_out == 2
    other.set_epoch(1)
    assert other.left_out == 0
    assert "left_out" not in other.state_dict()
