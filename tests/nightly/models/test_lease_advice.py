"""Property of the policy of leases that takes hours of advice: for longer than the gate has time."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.launch.leases.actions import CancelPending, EndLease, Release
from farandole.launch.leases.limits import LeaseLimits
from tests.support.launch.lease_world import Call, LeaseWorld

NOISE = st.lists(st.tuples(st.integers(10, 130), st.integers(1, 40)), min_size=50, max_size=400)


@given(NOISE, st.sampled_from(["fixed", "grow"]), st.sampled_from([0.0, 200.0]))
@settings(max_examples=100, deadline=None)
def test_noisy_advice_changes_the_size_rarely(noise: list[tuple[int, int]], batch: str, wait_s: float) -> None:
    limits = msgspec.convert({"max-np": 24, "most-leases": 24, "batch": batch}, LeaseLimits)
    world = LeaseWorld(limits, wait_s=wait_s)
    world.progress = msgspec.structs.replace(world.progress, batch=32.0)
    changes, ways = [], []
    # Every piece of advice may be told many times, as calls come more often than advice.
    for seconds, size in noise * 2:
        world.advise(size, low=size * 40.0)
        for _ in range(2):
            world.tick(seconds)
            call = world.calls[-1]
            if call.after.goal != call.plan.goal and call.plan.goal:
                changes.append(call.seen.now_s)
            ways += [(call.seen.now_s, way) for way in size_changes(call)]
    for since in changes:
        assert sum(since <= at_s < since + 3600 for at_s in changes) <= 6
    for (before_s, before), (after_s, after) in pairwise(ways):
        assert before == after or after_s - before_s >= 600


def size_changes(call: Call) -> set[str]:
    """Which way the number of workers was changed by policy: chains, and what replaces a loss, leave it as it is."""
    found = set()
    for decision in call.decisions:
        action = decision.action
        if isinstance(action, Release) and call.after.notes[action.job].growth:
            found.add("up")
        elif isinstance(action, EndLease | CancelPending) and "no more than" in decision.reason:
            found.add("down")
    return found
