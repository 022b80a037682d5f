"""What a relay lets wait, and what it passes on when; the interleavings are in ``test_tree_properties``."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import DType, Kind
from farandole.control.messages import Entry, GatheredParts, Order, SharedEntry, Signature, Welcome
from farandole.runtime.coordination.downlink import Downlink
from farandole.runtime.coordination.rank_set import RankSet, alike
from farandole.runtime.relay.combining import HOLD_S, Combining
from farandole.runtime.relay.relaying import Gathering

SIGNATURE = Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]])
LOSS, ACCURACY = Entry(0, "loss", signature=SIGNATURE), Entry(0, "accuracy", 4)
JOIN = Entry(0, "join", signature=Signature(Kind.JOIN, [], []))


def below(ranks: Sequence[int], sets: Sequence[Sequence[int]] = ()) -> Downlink:
    downlink = Downlink(lambda *_: None)
    downlink.begin(Welcome(1, -1, ["a"] * 8, "tcp", ""), sets, [(rank, b"%d" % rank) for rank in ranks])
    return downlink


def only(*ranks: int) -> RankSet:
    return RankSet.of(ranks)


def test_all_below_are_one_share_without_ranks() -> None:
    combining = Combining(below([2, 3, 6]))
    for rank in (2, 6, 3):
        assert combining.pop_due(0.0) == []
        combining.submit(only(rank), ACCURACY, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(ACCURACY)]
    assert combining.pop_due(HOLD_S) == []
    assert combining.deadline_s is None


def test_only_members_of_the_process_set_are_waited_for() -> None:
    combining = Combining(below([2, 3, 6], sets=[[0, 2, 6]]))
    mine = Entry(1, "loss", 4)
    combining.submit(only(2), mine, now=0.0)
    combining.submit(only(6), mine, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(mine)]


def test_what_differs_goes_up_side_by_side() -> None:
    combining = Combining(below([2, 3, 6]))
    other = Entry(0, "loss", signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[4]]))
    for rank, entry in ((2, LOSS), (3, other), (6, LOSS)):
        combining.submit(only(rank), entry, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(LOSS, [2, 3, 6, 7]), SharedEntry(other, [3, 4])]


def test_an_unknown_process_set_is_nothing_to_wait_for() -> None:
    combining = Combining(below([2, 3]))
    combining.submit(only(2), Entry(9, "loss", 4), now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(Entry(9, "loss", 4), [2, 3])]


def test_after_a_while_it_goes_up_as_far_as_it_came_and_the_late_ones_follow_at_once() -> None:
    combining = Combining(below([2, 3, 6]))
    combining.submit(only(2), ACCURACY, now=1.0)
    combining.submit(only(3), ACCURACY, now=1.1)
    due = [combining.deadline_s]
    assert combining.pop_due(1.0 + HOLD_S) == [SharedEntry(ACCURACY, [2, 4])]
    assert [*due, combining.deadline_s] == [1.0 + HOLD_S, None]
    combining.submit(only(6), ACCURACY, now=9.0)
    assert combining.pop_due(9.0) == [SharedEntry(ACCURACY, [6, 7])]


def test_a_rank_that_was_told_of_an_error_may_come_again() -> None:
    combining = Combining(below([2, 3]))
    combining.submit(only(2), ACCURACY, now=0.0)
    assert combining.pop_due(HOLD_S) == [SharedEntry(ACCURACY, [2, 3])]
    combining.ordered(Order(0, 1, Kind.ALLREDUCE, ["accuracy"], [SIGNATURE], error="no"), only(2))
    combining.submit(only(3), ACCURACY, now=1.0)
    assert combining.pop_due(1.0) == []
    combining.submit(only(2), ACCURACY, now=1.0)
    assert combining.pop_due(1.0) == [SharedEntry(ACCURACY)]


def test_joined_ranks_are_not_waited_for_and_their_joining_goes_up_with_what_needs_it() -> None:
    combining = Combining(below([2, 3, 6]))
    combining.submit(only(6), JOIN, now=0.0)
    assert combining.pop_due(0.0) == []
    for rank in (2, 3):
        combining.submit(only(rank), ACCURACY, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(ACCURACY, [2, 4]), SharedEntry(JOIN, [6, 7])]
    for rank in (2, 3):
        combining.submit(only(rank), ACCURACY, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(ACCURACY, [2, 4])]


def test_joining_overtakes_nothing_that_was_said_before() -> None:
    combining = Combining(below([2, 3]))
    combining.submit(only(2), ACCURACY, now=0.0)
    combining.submit(only(2), JOIN, now=0.0)
    combining.submit(only(3), JOIN, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(ACCURACY, [2, 3]), SharedEntry(JOIN)]


def test_once_all_have_joined_they_are_waited_for_again() -> None:
    combining = Combining(below([2, 3]))
    combining.submit(only(2, 3), JOIN, now=0.0)
    assert combining.pop_due(0.0) == [SharedEntry(JOIN)]
    combining.ordered(Order(0, 1, Kind.JOIN, ["join"], [Signature(Kind.JOIN, [], [])]), only(2, 3))
    combining.submit(only(2), ACCURACY, now=0.0)
    assert combining.pop_due(0.0) == []


def test_parts_of_an_exchange_go_up_together_or_after_a_while() -> None:
    gathering = Gathering(below([2, 3, 6]))
    gathering.submit("k", (6, 2, 0), {6: b"six"}, now=0.0)
    assert gathering.pop_due(0.0) == []
    gathering.submit("k", (6, 2, 0), {2: b"two"}, now=0.0)
    assert gathering.pop_due(0.0) == [GatheredParts(1, "k", [6, 2, 0], [(6, b"six"), (2, b"two")])]
    gathering.submit("slow", (2, 3), {3: b"three"}, now=1.0)
    assert gathering.deadline_s == 1.0 + HOLD_S
    assert gathering.pop_due(1.0 + HOLD_S) == [GatheredParts(1, "slow", [2, 3], [(3, b"three")])]
    gathering.submit("slow", (2, 3), {2: b"two"}, now=9.0)
    assert gathering.pop_due(9.0) == [GatheredParts(1, "slow", [2, 3], [(2, b"two")])]
    assert gathering.deadline_s is None


ranks = st.sets(st.integers(0, 70))


@given(ranks, ranks)
def test_sets_of_ranks_are_sets(a: set[int], b: set[int]) -> None:
    left, right = RankSet.of(a), RankSet.of(b)
    assert list(left) == sorted(a)
    assert (set(left | right), set(left & right), set(left - right)) == (a | b, a & b, a - b)
    assert (len(left), bool(left), left.last()) == (len(a), bool(a), max(a, default=-1))
    assert (left <= right, left.isdisjoint(right), left == right) == (a <= b, a.isdisjoint(b), a == b)
    assert RankSet.of_spans(left.spans(), 71) == left
    assert all((rank in left) == (rank in a) for rank in range(-1, 72))


@given(st.lists(ranks, max_size=5))
def test_ranks_that_are_in_the_same_sets_come_together(sets: list[set[int]]) -> None:
    groups = alike([RankSet.of(own) for own in sets])
    found = {rank: which for together, which in groups for rank in together}
    assert found == {rank: [i for i, own in enumerate(sets) if rank in own] for rank in set().union(*sets)}
    assert len({tuple(which) for _, which in groups}) == len(groups)


@given(st.lists(st.integers(-3, 2**70), max_size=6))
def test_spans_that_nobody_can_mean_are_nobody(spans: list[int]) -> None:
    assert RankSet.of_spans(spans, 8) <= RankSet.span(0, 8)
