"""What the policy of leases does in one situation after the other."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from farandole.launch.leases.actions import (
    CancelPending,
    EndLease,
    LeaseAction,
    LeaseDecision,
    LookAtQueue,
    Release,
    Say,
    SetLimit,
    SetNice,
    SubmitArray,
)
from farandole.launch.leases.decide import decide
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import (
    Hold,
    LeaseObservation,
    LeaseRefusal,
    OutsideCancel,
    OutsideHold,
    OutsideLimit,
    Resume,
    ScaleTo,
    Stop,
)
from farandole.launch.leases.policy_state import LeasePlan
from farandole.launch.leases.rules import LeaseRule
from tests.support.launch.lease_world import START_S, LeaseWorld


def only(kind: type[LeaseAction], decisions: list[LeaseDecision]) -> list[LeaseDecision]:
    return [decision for decision in decisions if isinstance(decision.action, kind)]


def ordered(np: int, limits: LeaseLimits | None = None, own: int = 1) -> LeaseWorld:
    """A world that has come to an ordered size."""
    world = LeaseWorld(limits or LeaseLimits(), own=own)
    world.orders.append(ScaleTo(np))
    world.run(600)
    assert world.have == np
    return world


# -- growing -----------------------------------------------------------------------------------------------------------


def test_an_order_is_obeyed_at_once_two_in_the_queue_at_a_time() -> None:
    world = LeaseWorld(LeaseLimits(max_np=4))
    world.orders.append(ScaleTo(9))
    first = world.call()
    assert [type(decision.action) for decision in first] == [Say, SubmitArray]
    assert "9 workers ordered, and max-np is 4" in first[0].reason
    second = world.tick(1)
    assert [decision.action for decision in second] == [Release("801_0"), Release("801_1")]
    assert second[0].reason == "4 workers wanted, 1 there or asked for: max-np is 4"
    world.run(300)
    assert world.have == 4
    assert sum(len(only(SubmitArray, call.decisions)) for call in world.calls) == 1


def test_advice_must_agree_for_two_minutes() -> None:
    world = LeaseWorld(LeaseLimits(max_np=8))
    for _ in range(3):
        world.advise(4)
        world.tick(50)
    assert world.plan.goal == 1
    world.advise(4)
    assert only(SubmitArray, world.tick(50))
    world.run(120)
    assert world.have == 4


@pytest.mark.parametrize("spoils", ["lower", "refusal"])
def test_one_piece_of_advice_that_disagrees_begins_it_anew(spoils: str) -> None:
    world = LeaseWorld(LeaseLimits(max_np=8))
    for minute in range(1, 4):
        world.advise(1 if spoils == "lower" else 0, refusal="" if spoils == "lower" else "too little was measured")
        world.tick(60)
        world.advise(4)
        world.tick(60 * minute / 2)
    assert world.plan.goal == 1


def test_growth_stops_at_four_times_what_trains_and_at_the_noise_scale() -> None:
    world = LeaseWorld(LeaseLimits(batch="grow"), own=2)
    world.progress = msgspec.structs.replace(world.progress, batch=32.0)
    for low, goal in ((32.0 * 1000, 8), (32.0 * 6 + 31, 6)):
        again = dataclasses.replace(world, leases={}, calls=[], plan=LeasePlan())
        for _ in range(3):
            again.advise(100, low=low)
            again.tick(100)
        assert again.plan.goal == goal


def test_growth_that_saves_less_than_its_pauses_is_none() -> None:
    world = LeaseWorld(LeaseLimits())
    for _ in range(6):
        world.advise(4, saves_s=2.9)  # three workers pause the others for 0.2 s each; five times that is 3 s
        world.tick(100)
    assert world.plan.goal == 1
    for _ in range(3):
        world.advise(4, saves_s=3.1)
        world.tick(100)
    assert world.plan.goal == 4


def test_a_lease_has_ten_times_its_warm_up() -> None:
    world = LeaseWorld(LeaseLimits(lease_lengths_s=(390.0,)))
    for _ in range(4):
        world.advise(4)
        world.tick(100)
    assert not only(Release, [decision for call in world.calls for decision in call.decisions])
    world.orders.append(ScaleTo(2))  # people know better
    world.run(100)
    assert world.have == 2


def test_a_lease_gets_no_more_time_than_the_training_needs() -> None:
    world = LeaseWorld(LeaseLimits())
    world.progress = msgspec.structs.replace(world.progress, remaining_s=600.0)
    world.orders.append(ScaleTo(2))
    decisions = world.run(20)
    [limit] = only(SetLimit, decisions)
    assert limit.action == SetLimit("801_0", 15)  # one and a half times, and the warm-up
    assert decisions.index(limit) < decisions.index(only(Release, decisions)[0])


def test_the_goal_changes_six_times_an_hour() -> None:
    """Advice that rises by a quarter each five minutes, and is right each time."""
    world = LeaseWorld(LeaseLimits(most_leases=100), own=4)
    for target in (5, 7, 9, 12, 15, 19, 24, 30, 38, 48):
        for _ in range(3):
            world.advise(target)
            world.run(100)
    goals = [(call.seen.now_s, call.after.goal) for call in world.calls if call.after.goal != call.plan.goal]
    assert [goal for _, goal in goals[1:]] == [5, 7, 9, 12, 15, 19]
    world.run(600)
    for _ in range(3):
        world.advise(48)
        world.run(100)
    assert world.plan.goal == 24  # after an hour, and what the advice has agreed on since


def test_while_a_long_lease_waits_a_shorter_one_looks_for_a_hole() -> None:
    world = LeaseWorld(LeaseLimits(lease_lengths_s=(7200.0, 1200.0)), own=1, queued=True)
    world.orders.append(ScaleTo(2))
    world.run(120)
    world.orders.append(ScaleTo(3))
    decisions = world.run(20)
    [limit] = only(SetLimit, decisions)
    assert limit.action == SetLimit("801_1", 20)
    assert [decision.action for decision in only(Release, decisions)] == [Release("801_1")]


# -- shrinking ---------------------------------------------------------------------------------------------------------


def test_low_advice_must_last_ten_minutes() -> None:
    world = ordered(4)
    world.orders.append(Resume())
    world.run(600)
    for _ in range(10):
        world.advise(2)
        world.tick(60)
    assert world.have == 4
    world.advise(2)
    ends = only(EndLease, world.tick(60))
    assert len(ends) == 2
    assert "no more than 2 workers for 10 min" in ends[0].reason


def test_who_ends_soonest_leaves_first_then_the_newest() -> None:
    leases = tuple(
        Lease(job, 1, LeasePhase.MEMBER, since_s, ends_s)
        for job, since_s, ends_s in [
            ("8_1", START_S, START_S + 5000),
            ("8_2", START_S, START_S + 4000),
            ("8_3", START_S + 5, START_S + 5000),
            ("8_4", START_S + 5, START_S + 5000),
        ]
    )
    plan = LeasePlan()
    gone = []
    for np in (4, 3, 2, 1):
        plan, decisions = decide(LeaseLimits(), plan, LeaseObservation(START_S, 5, 1, leases, orders=(ScaleTo(np),)))
        gone += [decision.action for decision in only(EndLease, decisions)]
    assert gone == [EndLease("8_2"), EndLease("8_4"), EndLease("8_3"), EndLease("8_1")]


@pytest.mark.parametrize("first", ["up", "down"])
def test_ten_minutes_lie_between_opposite_changes(first: str) -> None:
    world = ordered(4)
    world.orders.append(Resume())
    world.run(600)
    begun_s = world.now_s
    for target in (8, 2) if first == "up" else (2, 8):
        while world.plan.goal != target:
            world.advise(target)
            world.tick(30)
    changed = [
        (call.seen.now_s, decision)
        for call in world.calls
        for decision in call.decisions
        if call.seen.now_s > begun_s and isinstance(decision.action, EndLease | Release)
    ]
    kinds = [EndLease, Release] if first == "down" else [Release, EndLease]
    before_s, after_s = ([at_s for at_s, decision in changed if isinstance(decision.action, kind)] for kind in kinds)
    assert min(after_s) - max(before_s) >= 600


def test_a_lease_stays_that_min_np_needs() -> None:
    """A worker of a lease has died, which its scheduler does not know."""
    leases = tuple(Lease(f"8_{i}", 1, LeasePhase.MEMBER, START_S, START_S + 5000) for i in range(3))
    seen = LeaseObservation(START_S, 2, 0, leases, orders=(ScaleTo(1),))
    assert not only(EndLease, decide(LeaseLimits(min_np=2), LeasePlan(), seen)[1])
    assert only(EndLease, decide(LeaseLimits(min_np=1), LeasePlan(), seen)[1])


def test_a_budget_ends_what_nobody_has_counted_on() -> None:
    """An administrator has given a lease more time than the budget has."""
    world = ordered(3, LeaseLimits(budget_node_hours=10.0, lease_lengths_s=(4 * 3600.0,)))
    member = max(world.of(LeasePhase.MEMBER), key=lambda lease: lease.job)
    world.leases[member.job] = msgspec.structs.replace(member, ends_s=world.now_s + 9 * 3600)
    [end] = only(EndLease, world.tick(10))
    assert "the budget is 10 node-hours" in end.reason


def test_the_budget_shortens_the_last_leases() -> None:
    world = ordered(3, LeaseLimits(budget_node_hours=2.5, lease_lengths_s=(7200.0,)))
    decisions = [decision for call in world.calls for decision in call.decisions]
    assert [decision.action for decision in only(SetLimit, decisions)] == [SetLimit("801_1", 30)]
    world.run(3 * 3600)
    assert world.node_hours <= 2.5
    assert world.have == 1


def test_what_waits_is_cancelled_before_what_trains_leaves() -> None:
    world = ordered(3)
    world.queued = True
    world.orders.append(ScaleTo(5))
    world.run(30)
    world.orders.append(ScaleTo(3))
    decisions = world.tick(10)
    assert len(only(CancelPending, decisions)) == 2
    assert not only(EndLease, decisions)


def test_a_rule_of_the_user_holds_at_once_and_for_good() -> None:
    rule = LeaseRule("val_acc>=0.9", "np=2,nice=1000")
    world = ordered(4, LeaseLimits(rules=(rule,)))
    world.orders.append(Resume())
    world.tick(10)
    world.progress = msgspec.structs.replace(world.progress, metrics={"val_acc": 0.91})
    decisions = world.tick(10)
    assert len(only(EndLease, decisions)) == 2
    assert "val_acc>=0.9" in only(EndLease, decisions)[0].reason
    world.progress = msgspec.structs.replace(world.progress, metrics={"val_acc": 0.1})
    for _ in range(20):
        world.advise(8)
        world.tick(100)
    assert world.have == 2
    world.queued = True
    world.orders.append(ScaleTo(3))
    assert only(SetNice, world.tick(10))[0].action == SetNice("801_3", 1000)
    assert not only(SetNice, world.tick(10))


def test_a_rule_lowers_what_was_ordered_before_and_an_order_comes_after() -> None:
    world = ordered(4, LeaseLimits(rules=(LeaseRule("val_acc>=0.9", "np=2"),)))
    world.progress = msgspec.structs.replace(world.progress, metrics={"val_acc": 0.91})
    world.run(30)
    assert world.have == 2
    world.orders.append(ScaleTo(3))
    world.run(200)
    assert world.have == 3


def test_low_advice_shrinks_to_the_most_that_it_has_asked_for() -> None:
    world = ordered(6)
    world.orders.append(Resume())
    world.run(600)
    for target in (2, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1):
        world.advise(target)
        world.tick(60)
    assert world.plan.goal == 4


def test_a_lease_that_has_just_joined_does_not_leave_at_once() -> None:
    """It had waited for long, and the advice has changed meanwhile."""
    world = ordered(4, LeaseLimits(most_leases=20))
    world.orders.append(Resume())
    world.run(600)
    world.wait_s = 500.0
    while world.plan.goal != 6:
        world.advise(6)
        world.tick(60)
    while not world.of(LeasePhase.LEAVING):
        world.advise(2)
        world.tick(60)
    joined_s = max(
        lease.since_s for lease in world.of(LeasePhase.MEMBER, LeasePhase.LEAVING) if lease.since_s < world.now_s
    )
    assert world.have < 6
    assert world.now_s - joined_s >= 600


# -- advice that changes while leases wait -----------------------------------------------------------------------------


def growing(target: int) -> LeaseWorld:
    """A world in which advice has agreed on a target, and two leases wait for it."""
    world = LeaseWorld(LeaseLimits(), own=4, queued=True)
    while not world.of(LeasePhase.PENDING):
        world.advise(target)
        world.tick(60)
    assert world.plan.goal == target
    return world


def test_nothing_more_is_released_than_the_latest_advice_supports() -> None:
    world = growing(12)
    world.queued = False
    world.advise(9)  # not so low that it shrinks what is there
    world.run(300)
    assert world.have == 9
    world.advise(12)
    world.run(600)
    assert world.have == 12


def test_a_refusal_of_advice_freezes_the_size() -> None:
    world = growing(12)
    world.queued = False
    world.advise(0, refusal="the noise scale is known too roughly")
    world.run(600)
    assert world.have == 6  # what was asked for before
    world.to(world.of(LeasePhase.MEMBER)[0], LeasePhase.GONE, cause="node failure")
    world.run(300)
    assert world.have == 6


# -- ends of jobs ------------------------------------------------------------------------------------------------------


def test_a_lease_leaves_before_its_end_and_its_successor_comes_before() -> None:
    world = ordered(2, LeaseLimits(lease_lengths_s=(1200.0,)))
    sizes = []
    for _ in range(720):
        world.tick(10)
        sizes.append(world.have)
    assert min(sizes) == 2, "a successor came too late"
    assert max(sizes) <= 3
    decisions = [decision for call in world.calls for decision in call.decisions]
    assert not [lease for lease in world.leases.values() if lease.cause == "time limit"]
    assert len(only(EndLease, decisions)) >= 5
    assert any("a successor takes" in decision.reason for decision in only(Release, decisions))


def test_a_successor_waits_for_its_predecessor_where_there_is_no_room() -> None:
    world = ordered(2, LeaseLimits(max_np=2, lease_lengths_s=(1200.0,)))
    sizes = []
    for _ in range(720):
        world.tick(10)
        sizes.append(world.have)
    assert max(sizes) <= 2
    assert sizes.count(2) > 650


def test_a_lease_that_nobody_follows_leaves_by_announcement() -> None:
    world = ordered(2, LeaseLimits(lease_lengths_s=(1200.0,)))
    world.orders.append(Hold())
    ends = only(EndLease, world.run(1200))
    assert len(ends) == 1
    assert "its job ends at" in ends[0].reason
    assert not only(Release, world.run(1200))


def test_a_lease_is_asked_for_no_longer_than_its_hours() -> None:
    world = LeaseWorld(LeaseLimits(hours=("22-24",), lease_lengths_s=(3600.0,)))
    world.now_s += 23.5 * 3600 - world.now_s % 86400
    world.orders.append(ScaleTo(2))
    assert [decision.action for decision in only(SetLimit, world.run(20))] == [SetLimit("801_0", 29)]


def long_waits(wait_s: float) -> tuple[float, float]:
    """When the only lease ends, and when its successor was released, where leases have waited for so long."""
    limits = LeaseLimits(lease_lengths_s=(4 * 3600.0,))
    member = Lease("8_0", 1, LeasePhase.MEMBER, START_S, START_S + 4 * 3600.0, 1, length_s=4 * 3600.0)
    held = Lease("8_1", 1, LeasePhase.HELD, START_S, nodes=1, length_s=4 * 3600.0)
    plan = LeasePlan(waits_s=(1.0, wait_s, wait_s), goal=1, reached=1)
    for minute in range(4 * 60):
        plan, decisions = decide(limits, plan, LeaseObservation(START_S + 60 * minute, 1, 0, (member, held)))
        if only(Release, decisions):
            return member.ends_s, START_S + 60 * minute
    raise AssertionError


def test_a_successor_is_released_earlier_by_the_waits_of_late() -> None:
    ends_s, released_s = long_waits(1800.0)
    assert ends_s - released_s == pytest.approx(1800 + 30, abs=60)


def test_a_successor_is_not_released_before_half_of_a_lease_is_over() -> None:
    ends_s, released_s = long_waits(9 * 3600.0)
    assert ends_s - released_s == pytest.approx(2 * 3600 + 30, abs=60)


def test_a_wait_that_goes_on_counts_as_long_as_it_is() -> None:
    """A lease of a growth is stuck in the queue: the successor of a member is asked for in time all the same."""
    limits = LeaseLimits(lease_lengths_s=(4 * 3600.0,))
    member = Lease("8_0", 1, LeasePhase.MEMBER, START_S, START_S + 4 * 3600.0, 1, length_s=4 * 3600.0)
    held = [Lease(f"8_{i}", 1, LeasePhase.HELD, START_S, nodes=1, length_s=4 * 3600.0) for i in (1, 2, 3)]
    plan, first = decide(limits, LeasePlan(), LeaseObservation(START_S, 1, 0, (member, *held), orders=(ScaleTo(2),)))
    assert [decision.action for decision in only(Release, first)] == [Release("8_1")]
    held[0] = msgspec.structs.replace(held[0], phase=LeasePhase.PENDING)
    for minute in range(4 * 60):
        plan, decisions = decide(limits, plan, LeaseObservation(START_S + 60 * minute, 1, 0, (member, *held)))
        if only(Release, decisions):
            break
    assert minute == pytest.approx(2 * 60, abs=1)  # it has waited for two hours, and two are left


def test_node_hours_of_a_lease_count_until_it_has_left() -> None:
    member = Lease("8_0", 1, LeasePhase.LEAVING, START_S, START_S + 3600.0, 1, length_s=3600.0)
    held = Lease("8_1", 1, LeasePhase.HELD, START_S, nodes=1, length_s=3600.0)
    limits = LeaseLimits(budget_node_hours=1.5)
    seen = LeaseObservation(START_S, 1, 1, (member, held), orders=(ScaleTo(2),))
    assert only(SetLimit, decide(limits, LeasePlan(), seen)[1])[0].action == SetLimit("8_1", 30)


def test_leases_run_in_their_hours_only() -> None:
    world = LeaseWorld(LeaseLimits(hours=("22-24",), max_np=3, lease_lengths_s=(3600.0,)))
    world.now_s = 1_700_006_400.0 - 1_700_006_400.0 % 86400 + 86400 + 20.5 * 3600
    world.orders.append(ScaleTo(3))
    running = []
    for _ in range(6 * 60):
        world.tick(60)
        if world.have > 1:
            running.append(world.now_s % 86400 / 3600)
    assert 22 <= min(running) < 22.2
    assert 23.5 < max(running) < 24
    assert all(lease.phase is LeasePhase.HELD for lease in world.leases.values())


def test_a_lease_that_may_run_on_leaves_before_its_hours_are_over() -> None:
    """One of a policy that had other hours, say: it leaves as long before as it would before the end of its job."""
    midnight_s = START_S - START_S % 86400 + 86400
    member = Lease("8_0", 1, LeasePhase.MEMBER, midnight_s - 3600.0, midnight_s + 3600.0, 1, length_s=7200.0)
    limits = LeaseLimits(hours=("22-24",), leave_s=30.0)

    def ended(before_s: float) -> list[LeaseDecision]:
        seen = LeaseObservation(midnight_s - before_s, 2, 1, (member,))
        return only(EndLease, decide(limits, LeasePlan(goal=2, reached=2), seen)[1])

    assert not ended(before_s=31.0)
    [end] = ended(before_s=29.0)
    assert end.reason == "leases may run in the hours 22-24 only"


# -- people ------------------------------------------------------------------------------------------------------------


def test_a_lease_cancelled_in_the_queue_is_an_order() -> None:
    world = LeaseWorld(LeaseLimits(), queued=True)
    world.orders.append(ScaleTo(3))
    world.run(20)
    [pending, *_] = world.of(LeasePhase.PENDING)
    world.to(pending, LeasePhase.GONE)
    world.orders.append(OutsideCancel(pending.job))
    assert any("was cancelled by somebody" in decision.reason for decision in world.tick(10))
    assert not only(Release, world.run(3500))
    assert world.plan.failed == 0
    assert only(Release, world.run(200))


def test_a_lease_held_by_root_is_left_alone() -> None:
    world = LeaseWorld(LeaseLimits(), queued=True)
    world.orders.append(ScaleTo(2))
    world.run(20)
    [pending] = world.of(LeasePhase.PENDING)
    world.to(pending, LeasePhase.HELD)
    world.orders.append(OutsideHold(pending.job, barred=True))
    assert not only(Release, world.run(3500))
    later = only(Release, world.run(200))
    assert [decision.action for decision in later] == [Release("801_1")]


def test_a_lease_released_by_somebody_is_kept_within_the_bounds() -> None:
    world = LeaseWorld(LeaseLimits(max_np=3))
    world.orders.append(ScaleTo(2))
    world.run(300)
    for job in ("801_5", "801_6"):
        world.to(world.leases[job], LeasePhase.PENDING)
    decisions = world.tick(1)
    assert [decision.action for decision in only(CancelPending, decisions)] == [CancelPending("801_6")]
    world.run(1200)
    assert world.have == 3


def test_a_time_limit_set_by_somebody_is_left_alone() -> None:
    world = ordered(2, LeaseLimits(lease_lengths_s=(36000.0,)))
    [member] = world.of(LeasePhase.MEMBER)
    world.leases[member.job] = msgspec.structs.replace(member, ends_s=world.now_s + 300)
    world.orders.append(OutsideLimit(member.job))
    decisions = world.run(300)
    assert not only(SetLimit, decisions)
    assert [decision.action for decision in only(EndLease, decisions)] == [EndLease(member.job)]
    assert world.have == 2, "no successor"


def test_stop_ends_everything_for_good() -> None:
    world = ordered(3)
    world.orders.append(Stop())
    world.run(30)
    assert not world.leases
    world.orders.append(ScaleTo(5))
    assert not only(SubmitArray, world.run(300))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_the_breaker_opens_after_three_leases_and_tries_one_at_a_time() -> None:
    world = LeaseWorld(LeaseLimits(max_np=8), breaks=True, wait_s=0.0)
    world.orders.append(ScaleTo(8))
    first = only(Release, world.run(60))
    assert 3 <= len(first) <= 6
    assert any("ended before they could train" in d.reason for call in world.calls for d in call.decisions)
    assert len(only(Release, world.run(3600))) <= 4  # after 1, 15, 30 and 60 minutes
    world.breaks = False
    world.run(7200)
    assert world.have == 8
    assert world.plan.failed == 0


def test_refusals_pause_for_longer_and_longer_and_are_said_once() -> None:
    world = LeaseWorld(LeaseLimits(), refuses="Access/permission denied")
    world.orders.append(ScaleTo(2))
    decisions = world.run(7200)
    assert len(only(SubmitArray, decisions)) == 5  # at 0, 1, 16, 46 and 106 minutes
    assert len([decision for decision in decisions if "Access/permission denied" in decision.reason]) == 1


def test_an_array_whose_submission_is_unanswered_is_not_submitted_again() -> None:
    plan = LeasePlan()
    submitted = []
    for minute in range(100):
        seen = LeaseObservation(START_S + 60 * minute, 1, 1, orders=(ScaleTo(2),))
        plan, decisions = decide(LeaseLimits(), plan, seen)
        submitted += only(SubmitArray, decisions)
    assert len(submitted) == 1


def test_a_release_that_a_look_does_not_show_yet_is_not_repeated() -> None:
    held = tuple(Lease(f"8_{i}", 1, LeasePhase.HELD, START_S) for i in range(4))
    plan, first = decide(LeaseLimits(), LeasePlan(), LeaseObservation(START_S, 1, 1, held, orders=(ScaleTo(2),)))
    plan, second = decide(LeaseLimits(), plan, LeaseObservation(START_S + 60, 1, 1, held))
    assert [decision.action for decision in only(Release, first)] == [Release("8_0")]
    assert not only(Release, second)
    refusal = LeaseRefusal("start", "8_0", "Job/step already completing or completed")
    plan, third = decide(LeaseLimits(), plan, LeaseObservation(START_S + 70, 1, 1, held, refusals=(refusal,)))
    assert not only(Release, third)
    plan, fourth = decide(LeaseLimits(), plan, LeaseObservation(START_S + 131, 1, 1, held))
    assert [decision.action for decision in only(Release, fourth)] == [Release("8_0")]


def test_a_lost_member_is_replaced_without_any_advice() -> None:
    world = ordered(3)
    world.orders.append(Resume())
    world.run(60)
    world.to(world.of(LeasePhase.MEMBER)[0], LeasePhase.GONE, cause="node3 failed")
    assert "one of them has gone" in only(Release, world.run(20))[0].reason
    world.run(100)
    assert world.have == 3


# -- looks -------------------------------------------------------------------------------------------------------------


def test_looks_are_rare_where_nothing_waits() -> None:
    world = ordered(2)
    assert len(only(LookAtQueue, world.run(3600))) in (11, 12)
    world.queued = True
    world.orders.append(ScaleTo(3))
    assert len(only(LookAtQueue, world.run(3600))) in (59, 60)


def test_nothing_is_looked_at_without_leases() -> None:
    world = LeaseWorld(LeaseLimits())
    assert not world.run(3600)
