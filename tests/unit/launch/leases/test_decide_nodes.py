"""What the policy of leases does about nodes, and what it knows of the cost of a change."""

from __future__ import annotations

import msgspec

from farandole.launch.leases.actions import EndLease, LookAtNodes, Release, Say
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import OutsideSuspend, ScaleTo
from tests.support.launch.lease_world import LeaseWorld
from tests.unit.launch.leases.test_decide import only, ordered


def test_a_lease_leaves_a_node_that_is_drained_and_has_a_successor() -> None:
    world = ordered(3, LeaseLimits(min_np=3))
    drained, other = world.of(LeasePhase.MEMBER)
    world.leases[drained.job] = msgspec.structs.replace(drained, drained="node2 (a fan)")
    decided = world.tick(1)
    (end,) = only(EndLease, decided)
    assert end.action == EndLease(drained.job)
    assert end.reason == "its node node2 (a fan) is being drained"
    assert len(only(Release, decided + world.run(300))) == 1
    assert world.have == 3
    assert other in world.of(LeasePhase.MEMBER)


def test_nodes_are_looked_at_while_leases_run_and_as_seldom_as_the_queue() -> None:
    world = LeaseWorld(LeaseLimits())
    assert not only(LookAtNodes, world.run(3600))
    world.orders.append(ScaleTo(2))
    world.run(300)
    assert len(only(LookAtNodes, world.run(3600))) in (11, 12)


def test_a_suspended_lease_is_spoken_of() -> None:
    world = ordered(2)
    (lease,) = world.of(LeasePhase.MEMBER)
    world.orders.append(OutsideSuspend(lease.job))
    (said,) = only(Say, world.tick(1))
    assert f"{lease.job} was suspended by somebody" in said.reason
    assert world.plan.goal == 2
