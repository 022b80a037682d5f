"""The pool on several hosts, message by message: what an agent says that was cut off for a while."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

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
)
from farandole.control.exits import WorkerExited
from farandole.control.keys import new_secret
from farandole.control.search_messages import TrialLeft
from farandole.errors import ControlError
from farandole.search.host_pool import HostPool
from farandole.search.lease_pool import LeasePool
from farandole.search.loop import in_order
from farandole.search.pools import MOST_EARLY, ProcessEnded
from farandole.search.worker import POOL
from farandole.settings import Settings
from farandole.version import __version__

HOST = socket.gethostname()
PEER = AGENT + HOST.encode()


class Pool:
    """A pool of workers here, and what it has sent to their agent."""

    def __init__(self, folder: Path, size: int) -> None:
        self.sent: list[Any] = []
        self.pool = HostPool(f"{HOST}:{size}", folder / "workers.txt", [], Settings())
        self.pool.connect(self.send)
        self.pool._contact = Contact([], new_secret())  # its agent is played here

    def send(self, identity: bytes, message: Any) -> bool:
        assert identity == PEER
        self.sent.append(message)
        return True

    def take(self, message: Any) -> list[ProcessEnded]:
        return self.pool.take(PEER, message)

    def hello(self, running: tuple[Started, ...] = (), ended: tuple[WorkerExited, ...] = ()) -> list[ProcessEnded]:
        return self.take(AgentHello(HOST, 1, __version__, (), running, ended))

    @property
    def started(self) -> list[int]:
        """Ids of workers that were ordered since the last question."""
        sent, self.sent = self.sent, []
        return [spec.worker_id for each in sent if isinstance(each, StartWorkers) for spec in each.workers]


@pytest.fixture
def agent(tmp_path: Path) -> Pool:
    pool = Pool(tmp_path, 3)
    assert pool.hello() == []
    assert pool.started == [0, 1, 2]
    return pool


def test_an_agent_that_comes_back_with_all_that_was_ordered_starts_nothing(agent: Pool) -> None:
    assert agent.hello(running=tuple(Started(i, 100 + i) for i in range(3))) == []
    assert agent.started == []
    agent.pool.kill(HOST, 102)  # its Started was lost
    assert agent.sent == [KillWorker(2)]


def test_an_end_that_was_lost_on_the_way_is_taken_in_once_and_made_up_for(agent: Pool) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    ended = (WorkerExited(1, -9),)
    running = (Started(0, 100), Started(2, 102))
    assert agent.hello(running, ended) == [ProcessEnded(101, -9, "was killed by SIGKILL", HOST)]
    assert agent.started == [3]
    assert not agent.pool.came(HOST, 101)
    assert agent.hello((*running, Started(3, 103)), ended) == []
    assert agent.started == []
    assert agent.take(Report(ended[0])) == []
    assert agent.started == []


def test_an_order_that_never_came_there_is_given_again(agent: Pool) -> None:
    assert [each.pid for each in agent.hello(running=(Started(1, 101),))] == [-1, -1]
    assert agent.started == [3, 4]


def test_a_worker_of_which_nothing_is_told_is_dead(agent: Pool) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    [gone] = agent.hello(running=(Started(0, 100), Started(2, 102)))
    assert (gone.pid, gone.code, gone.words) == (101, -signal.SIGKILL, "its end was not told")
    assert agent.started == [3]


def test_one_that_was_given_up_and_runs_is_killed_and_not_replaced(agent: Pool) -> None:
    agent.hello(running=(Started(0, 100), Started(1, 101)))
    assert agent.started == [3]
    assert agent.take(Started(2, 102)) == []  # it had the order after all
    assert agent.sent == [KillWorker(2)]
    agent.sent.clear()
    assert [each.pid for each in agent.take(Report(WorkerExited(2, -9)))] == [102]
    assert agent.started == []


def test_a_kill_that_was_lost_is_ordered_again(agent: Pool) -> None:
    for worker_id in range(3):
        agent.take(Started(worker_id, 100 + worker_id))
    agent.pool.kill(HOST, 101)
    agent.sent.clear()
    agent.hello(running=tuple(Started(i, 100 + i) for i in range(3)))
    assert agent.sent == [KillWorker(1)]


def test_ends_on_a_lease_that_leaves_are_no_fault_of_the_others(tmp_path: Path) -> None:
    pool = LeasePool(tmp_path / "pool", tmp_path / "workers.txt", [], Settings())
    pool._contact = Contact([], new_secret())
    for host, slots in (("a", 9), ("b", 1)):
        pool.take(
            AGENT + f"{host}+7".encode(),
            AgentHello(f"{host}+7", 1, __version__, lent=LeaseOffer("7", -1, 0, "", host, slots)),
        )
    pool.take(AGENT + b"a+7", Leaving())
    for worker_id in range(9):
        pool.take(AGENT + b"a+7", Report(WorkerExited(worker_id, -9)))
    for worker_id in range(9, 9 + MOST_EARLY):
        pool.take(AGENT + b"b+7", Report(WorkerExited(worker_id, 1)))
    with pytest.raises(ControlError, match="end before they have begun"):
        pool.take(AGENT + b"b+7", Report(WorkerExited(9 + MOST_EARLY, 1)))


def test_the_end_of_a_process_is_taken_in_after_what_it_had_said() -> None:
    other = AGENT + b"b"
    end, left, more = Report(WorkerExited(0, 0)), TrialLeft(7, 0, "returned", 0.5), Started(3, 103)
    came = [(PEER, end), (PEER, more), (POOL + b"x", left), (other, more)]
    assert in_order(came) == [(POOL + b"x", left), (other, more), (PEER, end), (PEER, more)]
