"""Hosts with agents, message by message: what an agent says that was cut off for a while, and what the fleet does."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import (
    AGENT,
    AgentHello,
    KillWorker,
    LeaseOffer,
    Leaving,
    Report,
    Started,
    StartWorkers,
    WorkerSpec,
)
from farandole.control.exits import WorkerExited
from farandole.control.keys import new_secret
from farandole.launch.providers.fleet import MOST_EARLY, Fleet, KillProcess
from farandole.launch.providers.hosts import AgentProvider, HostProvider
from farandole.launch.providers.leases import LeaseProvider
from farandole.launch.providers.provider import words_of
from farandole.settings import Settings
from farandole.version import __version__

HOST = socket.gethostname()


class Ended(NamedTuple):
    """Exit of a process, as the search takes it in."""

    pid: int
    code: int
    words: str
    host: str


class Hosts:
    """A provider and its fleet, and what they have sent to agents, which are played here."""

    def __init__(self, provider: AgentProvider, *peers: str) -> None:
        self.sent: list[Any] = []
        self.peers = [AGENT + peer.encode() for peer in peers]
        self.provider, self.fleet = provider, Fleet(provider.slots)
        AgentProvider.open(provider, Contact([], new_secret()), self.send)

    def send(self, identity: bytes, message: Any) -> bool:
        assert identity in self.peers
        self.sent.append(message)
        return True

    def take(self, message: Any, host: str = HOST) -> list[Ended]:
        found = []
        for event in self.provider.events(0.0, mail=[(AGENT + host.encode(), message)]):
            for worker in self.fleet.on(event):
                assert worker.exited is not None
                found.append(Ended(worker.pid, worker.exited.code, words_of(worker.exited), worker.host))
        self.carry_out()
        return found

    def carry_out(self) -> None:
        for order in self.fleet.take_orders():
            if isinstance(order, KillProcess):
                self.provider.kill(*order)
            else:
                self.provider.start(order.host, [WorkerSpec(each, ["true"], {}) for each in order.worker_ids])

    def hello(self, running: tuple[Started, ...] = (), ended: tuple[WorkerExited, ...] = ()) -> list[Ended]:
        return self.take(AgentHello(HOST, 1, __version__, (), running, ended))

    def kill(self, worker_id: int) -> None:
        [worker] = [each for each in self.fleet if each.worker_id == worker_id]
        self.fleet.kill(worker, 0.0)
        self.carry_out()

    @property
    def end(self) -> str:
        """Why the fleet has given up, in the provider's words."""
        return "" if self.fleet.given_up is None else self.provider.explain(self.fleet.given_up)

    @property
    def started(self) -> list[int]:
        """Ids of workers that were ordered since the last question."""
        sent, self.sent = self.sent, []
        return [spec.worker_id for each in sent if isinstance(each, StartWorkers) for spec in each.workers]


@pytest.fixture
def agent(tmp_path: Path) -> Hosts:
    hosts = Hosts(HostProvider(f"{HOST}:3", tmp_path / "workers.txt", [], Settings()), HOST)
    assert hosts.hello() == []
    assert hosts.started == [0, 1, 2]
    return hosts


def test_an_agent_that_comes_back_with_all_that_was_ordered_starts_nothing(agent: Hosts) -> None:
    assert agent.hello(running=tuple(Started(i, 100 + i) for i in range(3))) == []
    assert agent.started == []
    agent.kill(2)  # its Started was lost
    assert agent.sent == [KillWorker(2)]


def test_an_end_that_was_lost_on_the_way_is_taken_in_once_and_made_up_for(agent: Hosts) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    ended = (WorkerExited(1, -9),)
    running = (Started(0, 100), Started(2, 102))
    assert agent.hello(running, ended) == [Ended(101, -9, "was killed by SIGKILL", HOST)]
    assert agent.started == [3]
    assert agent.fleet.connect(1, b"pool-x", 101) is None
    assert agent.hello((*running, Started(3, 103)), ended) == []
    assert agent.started == []
    assert agent.take(Report(ended[0])) == []
    assert agent.started == []


def test_an_order_that_never_came_there_is_given_again(agent: Hosts) -> None:
    assert [each.pid for each in agent.hello(running=(Started(1, 101),))] == [-1, -1]
    assert agent.started == [3, 4]


def test_a_worker_of_which_nothing_is_told_is_dead(agent: Hosts) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    [gone] = agent.hello(running=(Started(0, 100), Started(2, 102)))
    assert (gone.pid, gone.code, gone.words) == (101, -signal.SIGKILL, "its exit was not reported")
    assert agent.started == [3]


def test_one_that_was_given_up_and_runs_is_killed_and_not_replaced(agent: Hosts) -> None:
    assert [each.pid for each in agent.hello(running=(Started(0, 100), Started(1, 101)))] == [-1]
    assert agent.started == [3]
    assert agent.take(Started(2, 102)) == []  # it had the order after all
    assert agent.sent == [KillWorker(2)]
    assert agent.fleet.connect(2, b"pool-x", 102) is None
    assert [each.pid for each in agent.fleet if each.worker_id == 2] == [102]
    agent.sent.clear()
    assert agent.take(Report(WorkerExited(2, -9))) == [], "its end was taken in before"
    assert not [each for each in agent.fleet if each.worker_id == 2]
    assert agent.started == []


def test_a_kill_that_was_lost_is_ordered_again(agent: Hosts) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    agent.kill(1)
    agent.sent.clear()
    agent.hello(running=tuple(Started(i, 100 + i) for i in range(3)))
    assert agent.sent == [KillWorker(1)]


def test_ends_on_a_lease_that_leaves_are_no_fault_of_the_others(tmp_path: Path) -> None:
    hosts = Hosts(LeaseProvider(tmp_path / "pool", tmp_path / "workers.txt", [], Settings()), "a+7", "b+7")
    for host, slots in (("a", 9), ("b", 1)):
        offer = LeaseOffer("7", -1, 0, "", host, slots)
        hosts.take(AgentHello(f"{host}+7", 1, __version__, lent=offer), f"{host}+7")
    assert hosts.fleet.size == 10
    hosts.take(Leaving(), "a+7")
    for worker_id in range(9):
        hosts.take(Report(WorkerExited(worker_id, -9)), "a+7")
    for worker_id in range(9, 9 + MOST_EARLY):
        hosts.take(Report(WorkerExited(worker_id, 1)), "b+7")
    assert hosts.end == ""
    hosts.take(Report(WorkerExited(9 + MOST_EARLY, 1)), "b+7")
    assert hosts.end == f", on b+7, exited with code 1; what they have written is in {tmp_path / 'workers.txt'}"


def test_a_lease_is_released_once_its_workers_have_no_job(tmp_path: Path) -> None:
    hosts = Hosts(LeaseProvider(tmp_path / "pool", tmp_path / "workers.txt", [], Settings()), "a+7")
    hosts.take(AgentHello("a+7", 1, __version__, lent=LeaseOffer("7", -1, 0, "", "a", 2)), "a+7")
    for worker_id in range(2):
        hosts.take(Started(worker_id, 100 + worker_id), "a+7")
    worker = hosts.fleet.connect(0, b"pool-x", 100)
    assert worker is not None
    worker.member_id = 5
    hosts.take(Leaving(), "a+7")
    assert (hosts.fleet.vacated, hosts.fleet.size) == (set(), 0)
    assert hosts.fleet.connect(1, b"pool-y", 101) is None, "it would get a job"
    worker.member_id = -1
    assert hosts.fleet.vacated == {"a+7"}
    for _ in range(2):
        hosts.provider.release("a+7")
    reason = "is lost with its host: its workers have left: its scheduler wants it back (SIGTERM)"
    assert hosts.take(None) == [Ended(100 + i, -signal.SIGKILL, reason, "a+7") for i in range(2)]
    assert (hosts.fleet.vacated, list(hosts.fleet)) == (set(), [])
    hosts.sent.clear()
    hosts.take(AgentHello("a+7", 1, __version__, lent=LeaseOffer("7", -1, 0, "", "a", 2)), "a+7")
    assert hosts.started == [], "it was given up"
