"""Joins wait for what their ranks are asked to say again."""

from __future__ import annotations

import numpy as np

from farandole.collective import DType, Kind
from farandole.control.messages import Entry, Signature
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.pending_resends import PendingResends
from farandole.runtime.coordination.rank_set import NOBODY, RankSet
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.rank import RankContext
from workbench.jobs import NumpyCalls, run_job

KEY, OTHER = (0, "a"), (0, "b")
JOIN = Entry(0, "join", signature=Signature(Kind.JOIN, [], []))
ZERO, ONE, BOTH = RankSet.of([0]), RankSet.of([1]), RankSet.of([0, 1])


def test_a_join_waits_for_all_that_its_rank_is_to_say_again() -> None:
    overdue = PendingResends()
    overdue.expect(BOTH, KEY)
    overdue.expect(ONE, OTHER)
    assert overdue.hold(RankSet.of([0, 1, 2]), JOIN) == BOTH
    assert overdue.free() == []
    overdue.said(BOTH, KEY)
    assert overdue.free() == [(ZERO, JOIN)]
    overdue.said(ONE, OTHER)
    assert overdue.free() == [(ONE, JOIN)]
    assert overdue.free() == []
    assert overdue.hold(BOTH, JOIN) == NOBODY


def test_who_has_left_holds_up_nothing() -> None:
    overdue = PendingResends()
    overdue.expect(BOTH, KEY)
    overdue.hold(BOTH, JOIN)
    overdue.drop(0)
    overdue.said(ONE, KEY)
    assert overdue.free() == [(ONE, JOIN)]


def test_what_is_said_again_counts_before_the_join() -> None:
    negotiation = Negotiation(["a", "a"])
    signature = Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[1]])
    assert negotiation.submit(ONE, Entry(*KEY, cached=7), 0.0) == ONE
    for ranks in (ONE, ZERO):
        negotiation.submit(ranks, JOIN, 0.0)
    assert not negotiation.undecided
    negotiation.submit(ONE, Entry(*KEY, signature=signature), 0.0)
    ordered = [delivery.order for delivery in negotiation.decide(0.0)]
    assert [(order.names, order.joined, order.error) for order in ordered] == [(["a"], [0], ""), (["join"], [], "")]


def _reduce(name: str, *values: float) -> list[float]:
    array = np.array(values, np.float32)
    NumpyCalls().allreduce(name, array)
    result: list[float] = array.tolist()
    return result


def _join_with_a_forgotten_number(member: RankContext) -> list[list[float]]:
    results = []
    for _ in range(10):
        init()
        for values in ((1.0,), (1.0,), (1.0, 1.0)):  # a number, and then another meaning
            _reduce("a", *values)
        if member.rank == 0:
            array = np.array([100.0], np.float32)
            handle = NumpyCalls().submit(NumpyCalls().reduction("a", array))
            current().join()
            handle.wait()
            results.append(array.tolist())
        else:
            current().join()
        results.append(_reduce("a", 1.0 + member.rank))
        shutdown()
    return results


def test_no_result_is_of_the_time_before_the_join() -> None:
    assert run_job(_join_with_a_forgotten_number, 2) == [[[100.0], [3.0]] * 10, [[3.0]] * 10]
