"""What a search can use becomes orders, and orders leases: the demand, the policy, and a scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.agent_messages import LeaseOffer
from farandole.launch.leases.job_arrays import LeaseSupply
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.manager import LeaseManager
from farandole.launch.leases.scheduler import JobPhase
from farandole.launch.providers.leases import Demand
from farandole.search.allot import Noise, Running, Time, demand
from workbench.scheduler.cluster import FakeCluster
from workbench.scheduler.fake import FakeScheduler

SCRIPT = "#!/bin/bash\n#SBATCH --time=60\n"
LIMITS = LeaseLimits(min_np=0, max_np=6, lease_workers=2, shrink_after_s=100.0, array_leases=4, look_pending_s=5.0)


def test_trials_that_wait_are_wanted_workers_for_and_a_noise_scale_bounds_those_that_run() -> None:
    assert demand([], 3, (1, 4)) == 12
    assert demand([Running(0), Running(1, noise=Noise(100.0, 50.0))], 0, (1, 4)) == 6
    assert demand([Running(0, noise=Noise(10.0, 50.0))], 0, (2, 4)) == 2, "never less than a trial must have"
    assert demand([Running(0)], 5, (1, 2), Time(left_s=5.0, first_rung_s=9.0)) == 2, "none can begin any more"
    assert demand([], 0, (1, 4)) == 0


def test_less_is_ordered_late_and_then_the_most_of_that_time() -> None:
    wish = Demand()
    orders = {at_s: wish.order(workers, at_s, LIMITS) for at_s, workers in
              [(0.0, 5), (10.0, 1), (50.0, 3), (90.0, 1), (109.0, 1), (110.0, 1), (111.0, 5), (112.0, 9)]}  # fmt: skip
    assert {at_s: each.np for at_s, each in orders.items() if each is not None} == {0.0: 6, 110.0: 4, 111.0: 6}
    wish.forget()
    assert wish.order(9, 113.0, LIMITS) is not None, "an order that the policy has dropped is given again"


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 60.0)), min_size=1, max_size=30))
def test_what_is_ordered_is_whole_leases_and_never_less_than_what_was_just_wanted(
    steps: list[tuple[int, float]],
) -> None:
    wish, ordered, now_s, wanted = Demand(), -1, 0.0, 0
    for wanted, pause_s in steps:
        now_s += pause_s
        order = wish.order(wanted, now_s, LIMITS)
        ordered = ordered if order is None else order.np
        assert ordered % 2 == 0
        assert min(wanted, 6) <= ordered <= 6
    last = wish.order(wanted, now_s + 100.0, LIMITS), wish.order(wanted, now_s + 200.0, LIMITS)
    ordered = next((order.np for order in reversed(last) if order is not None), ordered)
    assert ordered == min(6, wanted + wanted % 2), "in the end it is what is wanted"


class Steered:
    """A pool that wants workers of a manager; ``turn`` is one of its loop, at the time of the cluster."""

    def __init__(self, limits: LeaseLimits, nodes: int = 3) -> None:
        self.cluster = FakeCluster(nodes=nodes, now_s=4e9)  # later than the manager was made, by the clock
        self.scheduler, self.said = FakeScheduler(self.cluster), list[str]()
        self.manager = LeaseManager(limits, LeaseSupply(SCRIPT, "abc", workers=2), self.scheduler, lambda _: None)
        self.manager.say = self.said.append
        self.demand, self.hosts, self.lent = Demand(), dict[str, str](), 0

    def turn(self, wanted: int, seconds: float = 1.0) -> list[str]:
        """Let time pass; agents of jobs that run connect, and hosts that must leave do so."""
        self.cluster.advance(seconds)
        now_s = self.cluster.now_s
        for array in ("1", "2"):
            for index, view in self.cluster.jobs(array).items():
                if view.phase is JobPhase.RUNNING and f"{array}_{index}" not in self.hosts.values():
                    offer = LeaseOffer(array, index, 0, "x", view.nodes[0], 2, view.ends_s)
                    self.hosts[offer.host] = offer.title
                    self.manager.book.admit(offer, now_s)
        if order := self.demand.order(wanted, now_s, self.manager.limits):
            self.manager.order(order)
        left = [host for host, _ in self.manager.turn(now_s, 2 * len(self.hosts), 0, set(self.hosts))]
        for host in dict.fromkeys(left):
            self.manager.book.gone(host, "its workers have left", now_s)
            self.cluster.cancel(self.hosts.pop(host))
        return left

    def phases(self) -> list[LeasePhase]:
        return [lease.phase for lease in self.manager.book.leases if lease.phase is not LeasePhase.HELD]


@pytest.fixture
def steered() -> Iterator[Steered]:
    made = Steered(LIMITS)
    yield made
    made.manager.close()


def test_a_pool_grows_to_its_bounds_while_trials_wait_and_gives_back_what_few_trials_need_not(steered: Steered) -> None:
    assert steered.turn(wanted=20) == []
    for _ in range(6):
        steered.turn(wanted=20)
    assert steered.phases() == [LeasePhase.MEMBER] * 3, "max-np is three leases of two"
    assert "6 workers wanted, 0 there or asked for: the search can use 20 workers" in steered.said
    assert steered.turn(wanted=3) == []
    assert len(steered.turn(3, LIMITS.shrink_after_s)) == 1
    assert len(steered.turn(0)) == 0
    assert len(steered.turn(0, LIMITS.shrink_after_s)) == 2
    assert steered.hosts == {}
    for _ in range(3):
        steered.turn(wanted=2)
    assert len(steered.hosts) == 1, "and takes another one when there are trials again"


def test_a_lease_that_ends_has_a_successor_and_one_that_somebody_cancelled_has_none(steered: Steered) -> None:
    for _ in range(4):
        steered.turn(wanted=2)
    [(host, job)] = steered.hosts.items()
    steered.cluster.cancel(job)  # preempted, or cancelled while it runs: its agent has left
    steered.manager.book.gone(host, "its scheduler wants it back", steered.cluster.now_s)
    del steered.hosts[host]
    for _ in range(4):
        steered.turn(wanted=2)
    assert list(steered.hosts.values()) == ["1_1"]
    steered.cluster.nodes = 1
    steered.turn(wanted=4)  # another one waits in the queue, for want of a node
    queued = (LeasePhase.ASKED, LeasePhase.PENDING)
    [waits] = [lease.job for lease in steered.manager.book.leases if lease.phase in queued]
    steered.cluster.cancel(waits)
    while steered.manager.plan.frozen_s == 0.0:
        steered.turn(4, 60.0)
    steered.cluster.nodes = 3
    for wanted in (6, 6, 6, 6):  # also if the search could use more meanwhile
        steered.turn(wanted, 60.0)
    assert len(steered.hosts) == 1
    assert any("cancelled by somebody: nothing is released for" in text for text in steered.said)


def test_the_policy_bounds_a_search_as_a_training() -> None:
    bounds = {"most_leases": 1, "most_nodes": 2, "budget_node_hours": 2.0, "paused": True}
    leases = []
    for key, value in bounds.items():
        bounded = Steered(LeaseLimits(**{"min_np": 0, "max_np": 6, "lease_workers": 2, key: value}))  # type: ignore[arg-type]
        for _ in range(6):
            bounded.turn(wanted=20)
        leases.append(len(bounded.hosts))
        bounded.manager.close()
    assert leases == [1, 2, 2, 0]
