"""Leases of a search: a provider with the lease manager, a scheduler in virtual time, and agents that are played."""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AGENT, AgentHello, LeaseOffer, Leaving, StopWorkers
from farandole.control.exits import HostLost
from farandole.control.keys import new_secret
from farandole.control.run_messages import RunOrder, RunReply
from farandole.control.search_messages import PoolHello
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.folder_thread import JOURNAL
from farandole.launch.leases.job_arrays import LeaseSupply
from farandole.launch.leases.journal import read_records, replay
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import Hold
from farandole.launch.leases.recorded_leases import RecordedLeases
from farandole.launch.leases.scheduler import JobPhase
from farandole.launch.providers.leases import LeaseProvider
from farandole.launch.providers.provider import HostLeaving, HostOffered, ProviderEvent
from farandole.settings import Settings
from farandole.version import __version__
from tests.support.patience import PATIENCE_S
from workbench.scheduler.cluster import FakeCluster
from workbench.scheduler.fake import FakeScheduler

SUPPLY = LeaseSupply("#!/bin/bash\n#SBATCH --time=60\n", "abc", workers=2)
LIMITS = LeaseLimits(min_np=0, max_np=6, lease_workers=2, shrink_after_s=0.0, array_leases=4, most_pending=4)


class Pool:
    """A provider that is open, its cluster, and what it has told."""

    def __init__(self, folder: Path, cluster: FakeCluster) -> None:
        self.cluster, self.told, self.sent = cluster, list[ProviderEvent](), list[tuple[str, Any]]()
        self.said: list[str] = []

        def begin(where: RunFolder) -> RecordedLeases:
            return RecordedLeases(
                where, SUPPLY, LIMITS, lambda: LIMITS, self.said.append, lambda: FakeScheduler(cluster)
            )

        self.provider = LeaseProvider(folder / "pool", folder / "workers.txt", [], Settings(), begin)
        self.provider.open(Contact(["tcp://127.0.0.1:9"], new_secret()), self.send)

    def send(self, identity: bytes, message: Any) -> bool:
        self.sent.append((identity.removeprefix(AGENT).decode(), message))
        return True

    def turn(self, *mail: tuple[bytes, Any]) -> None:
        self.told += self.provider.events(time.monotonic(), mail=mail)
        self.cluster.advance(max(0.0, time.time() - self.cluster.now_s))

    def order(self, verb: str, number: int = 0) -> RunReply:
        """Give an order, and wait for the reply."""
        assert self.provider.obey(RunOrder(verb, number), b"person") is None
        self.until(lambda: any(isinstance(each, RunReply) for _, each in self.sent), "for a reply")
        [reply] = [each for _, each in self.sent if isinstance(each, RunReply)]
        self.sent = [each for each in self.sent if each[1] is not reply]
        return reply

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"waited in vain {what}: {self.said}, {self.told}"
            select.select(list(self.provider.fds), [], [], 0.01)  # the cluster announces nothing
            self.turn()

    def jobs(self, phase: JobPhase, array: str = "1") -> list[int]:
        return [index for index, view in self.cluster.jobs(array).items() if view.phase is phase]

    def joins(self, index: int, array: str = "1", ends_s: float = 3600.0) -> str:
        """Connect the agent of a job that runs, and a worker that it has started; returns the name of the host."""
        node = self.cluster.jobs(array)[index].nodes[0]
        offer = LeaseOffer(array, index, 0, "x", node, 2, time.time() + ends_s)
        self.turn((AGENT + offer.host.encode(), AgentHello(offer.host, 1, __version__, lent=offer)))
        self.turn((b"pool-1", PoolHello(offer.host, 1, __version__)))
        return offer.host

    def leaves(self, host: str) -> None:
        """Release a host that is to leave: its agent and so its job end."""
        self.until(lambda: HostLeaving(host) in self.told, f"for {host} to leave")
        self.provider.release(host)
        assert (host, StopWorkers(0.0)) in self.sent
        self.cluster.cancel(host.partition("+")[2])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(nodes=3, now_s=time.time() + 0.5, start_s=0.0, ending_s=0.0)


@pytest.fixture
def pool(cluster: FakeCluster, tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path, cluster)
    with contextlib.closing(made.provider):
        yield made


def test_what_trials_can_use_is_asked_for_and_given_back(pool: Pool) -> None:
    pool.provider.want(3, ())
    assert pool.provider.deadline_s == -math.inf, "the loop is to turn at once"
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [0, 1], "for two leases")
    assert pool.provider.deadline_s > time.monotonic(), "and then not again and again"
    first, second = pool.joins(0), pool.joins(1, ends_s=7200.0)
    assert [(each.host, each.slots) for each in pool.told if isinstance(each, HostOffered)] == [(first, 2), (second, 2)]
    assert [view.phase for view in pool.provider.lease_views()[0]] == ["member", "member", "held", "held"]
    pool.provider.want(1, {first})
    pool.until(lambda: any(isinstance(each, HostLeaving) for each in pool.told), "for one to be given back")
    [given] = [each.host for each in pool.told if isinstance(each, HostLeaving)]
    assert given == second, "which ends later, but has nothing to do"
    pool.leaves(given)
    pool.until(lambda: any(isinstance(each, HostLost) for each in pool.told), "for its end")
    [lost] = [each for each in pool.told if isinstance(each, HostLost)]
    assert lost == HostLost(given, "its workers have left: no more than 2 workers wanted: the search can use 1 worker")
    [kept] = {first, second} - {given}
    pool.turn((AGENT + kept.encode(), Leaving()))  # its scheduler wants it back
    pool.leaves(kept)
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [2], "for a successor")


def test_hold_and_release_are_obeyed_and_scale_says_what_to_type(pool: Pool) -> None:
    assert pool.order("hold").accepted
    pool.provider.want(2, ())
    pool.until(lambda: any("it is on hold" in text for text in pool.said), "for the hold")
    refused = pool.order("scale", 4)
    assert not refused.accepted
    assert "bound it by max-np = N in" in refused.text
    assert pool.order("release").accepted
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [0], "for a lease")
    assert pool.provider._leases is not None
    assert pool.provider._leases.manager.plan.ordered == 2, "as if it was ordered for the first time"


def test_an_order_is_answered_once_a_crash_does_not_lose_it(pool: Pool, cluster: FakeCluster, tmp_path: Path) -> None:
    pool.provider.want(2, ())
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [0], "for a lease")
    assert pool.order("hold").accepted
    with open(tmp_path / "pool" / JOURNAL) as lines:
        assert any(record.asked == [Hold()] for record in read_records(lines))
    killed, pool.provider._leases = pool.provider._leases, None  # as by SIGKILL
    assert killed is not None
    killed.close()
    again = Pool(tmp_path, cluster)
    with contextlib.closing(again.provider):
        again.provider.want(4, ())
        again.until(lambda: any("it is on hold" in text for text in again.said), "for the hold")


def test_the_end_leaves_no_job_and_a_later_search_knows_what_was_spent(
    pool: Pool, cluster: FakeCluster, tmp_path: Path
) -> None:
    pool.provider.want(6, ())
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [0, 1, 2], "for three leases")
    pool.joins(0)
    pool.provider.close()
    cluster.advance(10.0)
    assert cluster.jobs("1") == {}
    with open(tmp_path / "pool" / JOURNAL) as lines:
        *_, last = read_records(lines)
        lines.seek(0)
        assert not list(replay(lines))
    assert last.seen.leases == ()
    assert last.seen.node_hours > 0.0
    again = Pool(tmp_path, cluster)
    with contextlib.closing(again.provider):
        again.provider.want(2, ())
        again.until(lambda: again.jobs(JobPhase.RUNNING, "2") == [0], "for a lease of another array")
        assert cluster.find("abcx2") == "2", "its nonce was never used before"
        again.joins(0, "2")
        again.provider.want(4, ())
        again.until(lambda: again.jobs(JobPhase.RUNNING, "2") == [0, 1], "for a second one")
    with open(tmp_path / "pool" / JOURNAL) as lines:
        *_, after = read_records(lines)
    assert after.seen.node_hours > last.seen.node_hours


def test_a_search_that_was_killed_leaves_leases_that_the_next_one_takes(
    pool: Pool, cluster: FakeCluster, tmp_path: Path
) -> None:
    pool.provider.want(2, ())
    pool.until(lambda: pool.jobs(JobPhase.RUNNING) == [0], "for a lease")
    killed, pool.provider._leases = pool.provider._leases, None  # as by SIGKILL: nothing is cancelled
    assert killed is not None
    killed.close()
    again = Pool(tmp_path, cluster)
    with contextlib.closing(again.provider):
        again.provider.want(4, ())
        again.until(lambda: again.jobs(JobPhase.RUNNING) == [0, 1], "for a second lease of the same array")
    cluster.advance(10.0)
    assert cluster.jobs("1") == {}
