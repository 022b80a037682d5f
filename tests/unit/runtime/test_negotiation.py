"""What the coordinator says in each case, case by case; the interleavings are in ``test_negotiation_properties``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from farandole.collective import DType, Kind, ReduceOp
from farandole.control.messages import Entry, Order, Signature
from farandole.runtime.coordination.negotiation import Delivery, Negotiation
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.stall import Waiting

F32 = int(DType.FLOAT32)


def allreduce(shape: Sequence[int] = (3,), dtype: int = F32, **more: Any) -> Signature:
    return Signature(Kind.ALLREDUCE, [dtype], [list(shape)], **more)


def say(negotiation: Negotiation, rank: int, signature: Signature, name: str = "x", process_set: int = 0) -> None:
    assert not negotiation.submit(RankSet.of([rank]), Entry(process_set, name, signature=signature), now=0.0)


def say_number(negotiation: Negotiation, rank: int, number: int, name: str = "x", process_set: int = 0) -> bool:
    """False if it must be said again in full."""
    return not negotiation.submit(RankSet.of([rank]), Entry(process_set, name, number), now=0.0)


def only(negotiation: Negotiation) -> Delivery:
    (delivery,) = negotiation.decide(now=0.0)
    return delivery


def all_say(negotiation: Negotiation, signature: Signature, name: str = "x", ranks: Sequence[int] = (0, 1)) -> Order:
    for rank in ranks:
        say(negotiation, rank, signature, name)
    return only(negotiation).order


# -- disagreements ----------------------------------------------------------------------------------------------------

BASE = allreduce()


def test_a_disagreement_is_told_to_all_and_the_next_call_works() -> None:
    negotiation = Negotiation(["a", "b"], cache_capacity=8)
    say(negotiation, 0, BASE)
    say(negotiation, 1, allreduce((4,)))
    ranks, order = only(negotiation)
    assert (list(ranks), order.error_kind) == ([0, 1], "MismatchError")
    assert order.error == "allreduce 'x': the ranks differ in the shape: rank 0 on a said [3]; rank 1 on b said [4]"
    assert all_say(negotiation, BASE).error == ""


def test_a_rank_that_cannot_do_it_says_why_and_waits_for_nobody() -> None:
    negotiation = Negotiation(["a", "b", "b"])
    cannot = Signature(Kind.ALLREDUCE, [], [], refusal="a tensor of float8 does not travel")
    say(negotiation, 1, cannot)
    assert list(negotiation.waiting()) == []
    say(negotiation, 0, BASE)
    assert [(waiting.ready, waiting.missing) for waiting in negotiation.waiting()] == [((0,), (2,))]
    say(negotiation, 2, BASE)
    ranks, order = only(negotiation)
    assert (list(ranks), order.error_kind, order.refused) == ([0, 1, 2], "MismatchError", True)
    assert order.error == (
        "allreduce 'x': the ranks differ in what they can do: rank 0 on a, rank 2 on b said it can; "
        "rank 1 on b said it cannot: a tensor of float8 does not travel"
    )
    assert "no rank can do it: a tensor of float8" in all_say(negotiation, cannot, ranks=(0, 1, 2)).error
    assert not all_say(negotiation, BASE, ranks=(0, 1, 2)).refused


def test_a_root_that_joined_has_nothing_to_send() -> None:
    negotiation = Negotiation(["a", "b"])
    say(negotiation, 1, Signature(Kind.BROADCAST, [F32], [[3]], root=0))
    say(negotiation, 0, Signature(Kind.JOIN, [], []), "join")
    told = only(negotiation)
    assert list(told.ranks) == [1]
    assert "the root is rank 0 on a, which has called join()" in told.order.error


# -- process sets -----------------------------------------------------------------------------------------------------


def test_waiting_for_each_other_in_different_sets_is_an_error_on_both_sides() -> None:
    negotiation = Negotiation(["a"] * 3, [[0, 1]])
    for rank in (2, 1):
        say(negotiation, rank, BASE)
    say(negotiation, 0, BASE, process_set=1)
    assert not negotiation.end_crossed(RankSet.of([0, 2])), "rank 1 may come to either"
    assert negotiation.end_crossed(RankSet.of([0, 1]))
    orders = negotiation.decide(1.0)
    assert [(list(ranks), order.process_set, order.error_kind) for ranks, order in orders] == [
        ([1, 2], 0, "MismatchError"),
        ([0], 1, "MismatchError"),
    ]
    for _, order in orders:
        assert "the process set: rank 0 on a said process set 1; ranks 1-2 on a said process set 0" in order.error


def test_one_name_in_two_sets_is_no_error_while_the_ranks_are_on_their_way() -> None:
    negotiation = Negotiation(["a"] * 3, [[0, 1]])
    say(negotiation, 0, BASE, process_set=1)
    say(negotiation, 2, BASE)
    assert not negotiation.end_crossed(RankSet.span(0, 3))
    assert not negotiation.undecided
    for process_set in (0, 1):
        say(negotiation, 1, BASE, process_set=process_set)
    say(negotiation, 0, BASE)
    assert [order.error for _, order in negotiation.decide(1.0)] == ["", ""]


def test_process_sets_come_and_go_and_ids_are_never_used_again() -> None:
    negotiation = Negotiation(["a"] * 2, [[0]])
    added = all_say(negotiation, Signature(Kind.ADD_SET, [], [], splits=[1]))
    assert (added.error, added.value) == ("", 2)
    again = all_say(negotiation, Signature(Kind.ADD_SET, [], [], splits=[1]))
    assert (again.error_kind, "process set 2 has these ranks already" in again.error) == ("UsageError", True)
    assert all_say(negotiation, Signature(Kind.REMOVE_SET, [], [], splits=[2])).value == 2
    assert all_say(negotiation, Signature(Kind.ADD_SET, [], [], splits=[1])).value == 3


@pytest.mark.parametrize(
    ("kind", "splits", "text"),
    [
        (Kind.ADD_SET, [], "at least one rank"),
        (Kind.ADD_SET, [0, 0], "named twice"),
        (Kind.ADD_SET, [2], "rank 2 is not in this job, whose ranks are 0 to 1"),
        (Kind.ADD_SET, [0, 1], "process set 0 has these ranks already"),
        (Kind.REMOVE_SET, [0], "the global process set cannot be removed"),
        (Kind.REMOVE_SET, [7], "there is no process set 7"),
        (Kind.REMOVE_SET, [], "there is no process set -1"),
    ],
)
def test_impossible_changes_of_process_sets_are_usage_errors(kind: Kind, splits: list[int], text: str) -> None:
    order = all_say(Negotiation(["a"] * 2), Signature(kind, [], [], splits=splits))
    assert text in order.error
    assert order.error_kind == "UsageError"


def test_dynamic_process_sets_can_be_turned_off() -> None:
    negotiation = Negotiation(["a"] * 2, [[0]], dynamic_sets=False)
    assert "dynamic_process_sets is off" in all_say(negotiation, Signature(Kind.ADD_SET, [], [], splits=[1])).error
    assert "dynamic_process_sets is off" in all_say(negotiation, Signature(Kind.REMOVE_SET, [], [], splits=[1])).error
    say(negotiation, 0, BASE, process_set=1)
    assert only(negotiation).order.error == ""


def test_what_waits_in_a_removed_set_fails_and_so_does_what_comes_later() -> None:
    negotiation = Negotiation(["a"] * 2, [[0]])
    all_say(negotiation, Signature(Kind.ADD_SET, [], [], splits=[1]))
    remove = Signature(Kind.REMOVE_SET, [], [], splits=[1])
    say(negotiation, 0, remove, "r")
    say(negotiation, 1, remove, "r")
    say(negotiation, 0, BASE, process_set=1)  # ready, but behind the removal
    removed, late = negotiation.decide(now=0.0)
    assert (removed.order.error, removed.order.value) == ("", 1)
    assert "the process set was removed" in late.order.error
    say(negotiation, 0, BASE, process_set=1)
    assert "there is no process set 1; rank 0 is in [0]" in only(negotiation).order.error


def test_a_stranger_to_a_set_is_told_so_alone() -> None:
    negotiation = Negotiation(["a"] * 3, [[0, 1]])
    say(negotiation, 2, BASE, process_set=1)
    ranks, order = only(negotiation)
    assert (list(ranks), order.error_kind) == ([2], "UsageError")
    assert "rank 2 is not in process set 1, which is [0, 1]; it is in [0]" in order.error


# -- joining and leaving ----------------------------------------------------------------------------------------------


def test_a_rank_that_joined_may_not_submit() -> None:
    negotiation = Negotiation(["a"] * 2)
    say(negotiation, 0, Signature(Kind.JOIN, [], []), "join")
    say(negotiation, 0, BASE)
    assert "rank 0 has called join(), which has not returned yet" in only(negotiation).order.error
    say(negotiation, 1, BASE)
    ranks, order = only(negotiation)
    assert (list(ranks), order.joined) == ([0, 1], [0])


def test_what_a_rank_submitted_before_it_joined_counts_and_is_not_fused_with_what_it_did_not() -> None:
    negotiation = Negotiation(["a"] * 2, fusion_threshold_bytes=1000)
    say(negotiation, 0, BASE, "a")
    say(negotiation, 0, BASE, "b")
    say(negotiation, 1, BASE, "b")
    say(negotiation, 1, Signature(Kind.JOIN, [], []), "join")
    assert [(d.order.names, d.order.joined) for d in negotiation.decide(0.0)] == [(["b"], []), (["a"], [1])]


def test_the_last_to_join_is_told_to_all() -> None:
    negotiation = Negotiation(["a"] * 3)
    for rank in (2, 0, 1):
        say(negotiation, rank, Signature(Kind.JOIN, [], []), f"join {rank}")
    ranks, order = only(negotiation)
    assert (list(ranks), order.value, order.joined) == ([0, 1, 2], 1, [])


def test_who_needs_a_rank_that_left_is_told_and_nobody_else() -> None:
    negotiation = Negotiation(["a"] * 3, [[0, 1]])
    say(negotiation, 0, BASE, "early")
    say(negotiation, 2, Signature(Kind.JOIN, [], []), "join")
    negotiation.remove_rank(2, "rank 2 on a has called shutdown()")
    told = negotiation.decide(0.0)
    assert [(list(d.ranks), d.order.error_kind) for d in told] == [([0], "AbortError"), ([2], "AbortError")]
    assert told[0].order.error == "allreduce 'early' cannot happen: rank 2 on a has called shutdown()"
    say(negotiation, 0, BASE, "late")
    assert "rank 2 on a has called shutdown()" in only(negotiation).order.error
    for rank in (0, 1):
        say(negotiation, rank, BASE, process_set=1)
    assert only(negotiation).order.error == ""


def test_a_join_that_fails_makes_its_ranks_needed_again() -> None:
    negotiation = Negotiation(["a"] * 4, [[0, 1, 2]])
    say(negotiation, 1, BASE, process_set=1)
    say(negotiation, 0, Signature(Kind.JOIN, [], []), "join")
    negotiation.remove_rank(3, "rank 3 on a has called shutdown()")
    assert only(negotiation).order.error_kind == "AbortError"
    say(negotiation, 2, BASE, process_set=1)
    assert not negotiation.undecided
    say(negotiation, 0, BASE, process_set=1)
    assert only(negotiation).order.joined == []


def test_what_is_ready_but_not_ordered_fails_when_a_rank_leaves() -> None:
    negotiation = Negotiation(["a"] * 2)
    for rank in (0, 1):
        say(negotiation, rank, BASE)
    negotiation.remove_rank(1, "rank 1 on a has called shutdown()")
    assert only(negotiation).order.error_kind == "AbortError"


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_the_second_sighting_brings_a_number_that_is_as_good_as_the_signature() -> None:
    negotiation = Negotiation(["a"] * 2, cache_capacity=8)
    assert all_say(negotiation, BASE).cached == [-1]
    (number,) = all_say(negotiation, BASE).cached
    assert number >= 0
    say_number(negotiation, 0, number)
    say(negotiation, 1, BASE)
    assert only(negotiation).order.cached == [number]
    say_number(negotiation, 1, number)
    say_number(negotiation, 0, number)
    order = only(negotiation).order
    assert (order.signatures, order.cached) == ([BASE], [number])


def test_a_number_does_not_speak_for_the_other_rank() -> None:
    negotiation = Negotiation(["a"] * 2, cache_capacity=8)
    all_say(negotiation, BASE)
    (number,) = all_say(negotiation, BASE).cached
    say_number(negotiation, 0, number)
    say(negotiation, 1, allreduce((4,)))
    assert "the shape" in only(negotiation).order.error
    say_number(negotiation, 0, number)
    say_number(negotiation, 1, number)
    assert only(negotiation).order.error == ""


def test_a_forgotten_number_is_asked_for_again_and_a_new_meaning_gets_a_new_number() -> None:
    negotiation = Negotiation(["a"] * 2, cache_capacity=1)
    all_say(negotiation, BASE)
    (number,) = all_say(negotiation, BASE).cached
    all_say(negotiation, BASE, "other")
    assert not say_number(negotiation, 0, number)
    assert negotiation.statistics()["cache_lines"] == 1
    all_say(negotiation, BASE)
    (second,) = all_say(negotiation, BASE).cached
    all_say(negotiation, allreduce((4,)))
    assert not say_number(negotiation, 0, second)
    (third,) = all_say(negotiation, allreduce((4,))).cached
    assert len({number, second, third}) == 3


def test_a_number_under_another_name_is_forgotten_too() -> None:
    negotiation = Negotiation(["a"] * 2, cache_capacity=8)
    all_say(negotiation, BASE)
    (number,) = all_say(negotiation, BASE).cached
    assert not say_number(negotiation, 0, number, "y")
    assert not say_number(negotiation, 0, number, process_set=5)


def test_a_line_forgotten_while_a_rank_is_missing_does_not_confuse_the_numbers() -> None:
    negotiation = Negotiation(["a"] * 2, [[0]], cache_capacity=1)
    all_say(negotiation, BASE)
    (number,) = all_say(negotiation, BASE).cached
    say_number(negotiation, 0, number)
    say(negotiation, 0, BASE, "evicts", process_set=1)
    only(negotiation)
    assert not say_number(negotiation, 1, number)
    say(negotiation, 1, BASE)
    order = only(negotiation).order
    assert (order.error, order.cached) == ("", [-1])


def test_without_a_cache_there_are_no_numbers() -> None:
    negotiation = Negotiation(["a"] * 2)
    for _ in range(3):
        assert all_say(negotiation, BASE).cached == [-1]


# -- fusion -----------------------------------------------------------------------------------------------------------


def test_what_is_ready_together_and_alike_travels_together_up_to_the_threshold() -> None:
    negotiation = Negotiation(["a"] * 2, fusion_threshold_bytes=24)
    entries = [Entry(0, name, signature=BASE) for name in "abc"]
    entries.insert(1, Entry(0, "other dtype", signature=allreduce(dtype=DType.FLOAT64)))
    entries.append(Entry(0, "adasum", signature=allreduce(op=ReduceOp.ADASUM)))
    for entry in entries:
        negotiation.submit(RankSet.of([0, 1]), entry, 0.0)
    assert [d.order.names for d in negotiation.decide(0.0)] == [["a", "b"], ["other dtype"], ["c"], ["adasum"]]


def test_a_group_is_never_split() -> None:
    negotiation = Negotiation(["a"] * 2, fusion_threshold_bytes=24)
    group = Signature(Kind.ALLREDUCE, [F32] * 3, [[3]] * 3)
    entries = [Entry(0, "a", signature=BASE), Entry(0, "group", signature=group)]
    for entry in entries:
        negotiation.submit(RankSet.of([0, 1]), entry, 0.0)
    assert [(d.order.names, d.order.signatures) for d in negotiation.decide(0.0)] == [
        (["a"], [BASE]),
        (["group"], [group]),
    ]


# -- small contributions ----------------------------------------------------------------------------------------------


def give(negotiation: Negotiation, rank: int, contribution: bytes, name: str = "x", number: int = -1) -> None:
    entry = Entry(0, name, number, None if number >= 0 else allreduce((1,)))
    assert not negotiation.submit(RankSet.only(rank), entry, 0.0, contribution)


def test_what_all_have_sent_along_goes_to_all_in_the_order_of_the_ranks() -> None:
    negotiation = Negotiation(["a"] * 3, cache_capacity=8, fusion_threshold_bytes=1000)
    number = -1
    for _ in range(3):  # in full, in full, by number
        for rank in (2, 0, 1):
            give(negotiation, rank, b"%d..." % rank, number=number)
        give(negotiation, 0, b"here", "y")
        order = only(negotiation).order
        assert order.contributions == [b"0...", b"1...", b"2..."]
        number = order.cached[0]
        for rank in (1, 2):
            give(negotiation, rank, b"more", "y")
        assert only(negotiation).order.contributions == [b"here", b"more", b"more"]


@pytest.mark.parametrize("wrong", [b"", b"three"])
def test_without_the_contribution_of_one_rank_all_go_to_the_engine(wrong: bytes) -> None:
    negotiation = Negotiation(["a"] * 2)
    give(negotiation, 0, b"four")
    give(negotiation, 1, wrong)
    order = only(negotiation).order
    assert (order.contributions, order.error) == ([], "")


def test_a_rank_that_has_joined_contributes_nothing_and_the_others_still_do() -> None:
    negotiation = Negotiation(["a"] * 3)
    say(negotiation, 1, Signature(Kind.JOIN, [], []), "join")
    give(negotiation, 2, b"last")
    give(negotiation, 0, b"zero")
    order = only(negotiation).order
    assert (order.contributions, order.joined) == ([b"zero", b"", b"last"], [1])


# -- what the stall inspector asks ------------------------------------------------------------------------------------


def test_who_waits_for_whom_and_what_they_did_last() -> None:
    negotiation = Negotiation(["a"] * 3)
    all_say(negotiation, BASE, "allreduce.loss", (0, 1, 2))
    negotiation.submit(RankSet.of([1]), Entry(0, "allreduce.acc", signature=BASE), now=7.0)
    (waiting,) = negotiation.waiting()
    assert waiting == Waiting((0, "allreduce.acc", 7.0), "allreduce 'acc'", 7.0, ready=(1,), missing=(0, 2))
    assert negotiation.last(0) == "allreduce 'loss'"
    assert Negotiation(["a"]).last(0) == ""


# -- hostile peers ----------------------------------------------------------------------------------------------------


def test_a_name_already_in_flight_is_counted_and_changes_nothing() -> None:
    negotiation = Negotiation(["a"] * 2)
    say(negotiation, 0, BASE)
    say(negotiation, 0, allreduce((4,)))
    assert negotiation.rejected.total() == 1
    say(negotiation, 1, BASE)
    assert only(negotiation).order.error == ""
