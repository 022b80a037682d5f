"""Properties of the policy of leases, whatever happens: bounds, pace, people's orders, and that it is a function."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.launch.leases.actions import CancelPending, EndLease, Release, SubmitArray
from farandole.launch.leases.decide import decide
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import AnyLeaseOrder, Hold, LeaseRefusal, OutsideCancel, Resume, ScaleTo, Stop
from tests.support.launch.lease_world import ALIVE, Call, LeaseWorld

EVENTS = (
    "order", "order", "order", "advice", "refusal of advice", "hold", "resume", "cancelled", "node lost", "queue stops",
    "queue goes", "leases break", "leases work", "start refused", "nothing", "nothing",
)  # fmt: skip

STORIES = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 400), st.integers(1, 20)), min_size=3, max_size=60)
LIMITS = st.builds(
    LeaseLimits,
    min_np=st.integers(1, 2),
    max_np=st.sampled_from([0, 3, 6, 8]),
    most_leases=st.integers(1, 6),
    most_nodes=st.sampled_from([0, 4]),
    most_pending=st.integers(1, 3),
    budget_node_hours=st.sampled_from([0.0, 3.0, 9.0]),
    lease_workers=st.sampled_from([1, 2]),
    lease_lengths_s=st.sampled_from([(1800.0,), (7200.0, 1200.0)]),
    batch=st.sampled_from(["fixed", "grow"]),
    array_leases=st.sampled_from([2, 5]),
)
WORLDS = st.builds(
    LeaseWorld,
    limits=LIMITS,
    own=st.integers(0, 2),
    wait_s=st.sampled_from([0.0, 45.0, 900.0]),
    slow=st.booleans(),
    random=st.integers(0, 9).map(random.Random),
)


def live(world: LeaseWorld, story: list[tuple[str, int, int]]) -> Iterator[Call]:
    """Every call of a story."""
    for event, seconds, size in story:
        happen(world, event, size)
        for _ in range(3):
            world.tick(seconds)
            yield world.calls[-1]


def happen(world: LeaseWorld, event: str, size: int) -> None:
    """One event of a story."""
    if event == "advice":
        world.advise(size, low=size * 40.0)
    elif event == "refusal of advice":
        world.advise(0, refusal="the noise scale is known too roughly")
    elif event in ("order", "hold", "resume"):
        orders: dict[str, AnyLeaseOrder] = {"order": ScaleTo(size), "hold": Hold(), "resume": Resume()}
        world.orders.append(orders[event])
    elif event == "cancelled":
        for lease in world.of(LeasePhase.PENDING)[:1]:
            world.to(lease, LeasePhase.GONE, cause="cancelled")
            world.orders.append(OutsideCancel(lease.job))
    elif event == "node lost":
        for lease in world.of(LeasePhase.MEMBER)[:1]:
            world.to(lease, LeasePhase.GONE, cause="node failure")
    elif event == "start refused":
        world.refusals += [LeaseRefusal("start", lease.job, "not now") for lease in world.of(LeasePhase.PENDING)[:1]]
    else:
        world.queued = {"queue stops": True, "queue goes": False}.get(event, world.queued)
        world.breaks = {"leases break": True, "leases work": False}.get(event, world.breaks)


def unless_own(world: LeaseWorld, bound: int) -> int:
    """The lead's own workers are there whatever the bound is."""
    return max(bound, world.own)


@given(WORLDS, STORIES)
@settings(max_examples=150, deadline=None)
def test_no_bound_is_passed(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    limits = world.limits
    for call in live(world, story):
        alive = world.of(*ALIVE)
        assert len(alive) <= limits.most_leases
        assert len(world.of(LeasePhase.ASKED, LeasePhase.PENDING)) <= limits.most_pending
        assert not limits.most_nodes or len(alive) <= limits.most_nodes
        if limits.max_np and not world.slow:
            assert world.have <= unless_own(world, limits.max_np)
        if limits.budget_node_hours:
            left_s = sum(max(0.0, each.ends_s - world.now_s) if each.ends_s else each.length_s for each in alive)
            assert world.node_hours + left_s / 3600 <= limits.budget_node_hours + 1e-6, call.decisions


@given(WORLDS, STORIES)
@settings(max_examples=100, deadline=None)
def test_people_are_obeyed(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    frozen_s, held, cancelled = 0.0, False, set()
    for call in live(world, story):
        for order in call.seen.orders:
            held = isinstance(order, Hold) or (held and not isinstance(order, Resume))
            if isinstance(order, OutsideCancel):
                known = call.plan.notes.get(order.job)
                frozen_s = frozen_s if known and known.told == "CancelPending" else call.seen.now_s + 3600
                cancelled.add(order.job)
            elif isinstance(order, ScaleTo | Resume):
                frozen_s = 0.0
        grows = [decision for decision in call.decisions if isinstance(decision.action, Release | SubmitArray)]
        assert not (grows and (held or call.seen.now_s < frozen_s))
        told = {getattr(decision.action, "job", "") for decision in call.decisions}
        assert not told & cancelled


@given(WORLDS, STORIES)
@settings(max_examples=100, deadline=None)
def test_min_np_is_kept_where_neither_time_nor_money_ends(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    for call in live(world, story):
        have, workers = call.seen.have, world.limits.lease_workers
        members = {lease.job for lease in call.seen.leases if lease.phase is LeasePhase.MEMBER}
        told = {job for job, note in call.plan.notes.items() if note.told == "EndLease"}
        have -= workers * len(members & told)
        for decision in call.decisions:
            if isinstance(decision.action, EndLease) and decision.action.job in members:
                have -= workers
                must = ("ends at", "budget", "most-", "max-np")
                assert have >= min(world.limits.min_np, call.seen.have) or any(w in decision.reason for w in must)


@given(WORLDS, STORIES)
@settings(max_examples=100, deadline=None)
def test_it_is_a_function_of_what_it_sees(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    """In whatever order the leases are listed; and it changes nothing that it is given."""
    for call in live(world, story):
        before = msgspec.json.encode(call.plan)
        leases = sorted(call.seen.leases, key=lambda lease: lease.job, reverse=True)
        again = decide(call.limits, call.plan, msgspec.structs.replace(call.seen, leases=tuple(leases)))
        assert again == (call.after, call.decisions)
        assert msgspec.json.encode(call.plan) == before
        assert all(decision.reason for decision in call.decisions)


@given(WORLDS, STORIES)
@settings(max_examples=100, deadline=None)
def test_nothing_is_told_twice(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    told: dict[str, set[str]] = {}
    serials: list[int] = []
    for call in live(world, story):
        for refusal in call.seen.refusals:
            told.pop(refusal.subject, None)
        for decision in call.decisions:
            action = decision.action
            if isinstance(action, Release | EndLease | CancelPending):
                assert type(action).__name__ not in told.setdefault(action.job, set()), decision
                told[action.job].add(type(action).__name__)
            elif isinstance(action, SubmitArray):
                serials.append(action.serial)
    assert serials == sorted(set(serials))


@given(st.integers(0, 9), st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_failing_leases_are_not_tried_for_ever(seed: int, most_pending: int) -> None:
    world = LeaseWorld(LeaseLimits(most_pending=most_pending), breaks=True, wait_s=0.0, random=random.Random(seed))
    world.orders.append(ScaleTo(10))
    day = [decision for decision in world.run(86400, step_s=60.0) if isinstance(decision.action, Release)]
    assert len(day) <= 3 * most_pending + 3 + 24


@given(WORLDS, STORIES)
@settings(max_examples=50, deadline=None)
def test_stop_leaves_nothing(world: LeaseWorld, story: list[tuple[str, int, int]]) -> None:
    for _ in live(world, story):
        pass
    world.orders.append(Stop())
    world.refusals = []
    for _ in range(8):
        world.tick(20)
    world.tick(3600)  # a cancel that was refused before is tried again
    world.tick(20)
    world.tick(20)
    assert not world.leases
