"""The fleet beside a duller model: hosts that run what they are told, and whose messages may be lost."""

from __future__ import annotations

import signal
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.control.agent_messages import Started
from farandole.control.exits import HostLost, WorkerExited
from farandole.launch.providers.fleet import MOST_EARLY, Fleet, KillProcess, ProcessState, StartProcesses
from farandole.launch.providers.provider import HostLeaving, HostOffered, ProviderEvent, words_of


@dataclass
class Host:
    """A host as it is: what runs there, and whether it is heard."""

    slots: int
    is_heard: bool = True
    is_up: bool = True
    running: dict[int, int] = field(default_factory=dict)
    ended: dict[int, WorkerExited] = field(default_factory=dict)


class World:
    """Hosts that carry out the orders of a fleet; ``on_way`` are the events that it has yet to handle."""

    def __init__(self) -> None:
        self.fleet = Fleet({})
        self.hosts: dict[str, Host] = {}
        self.on_way: deque[tuple[str, ProviderEvent]] = deque()
        self.ordered: dict[int, str] = {}
        self.reported: Counter[int] = Counter()
        self.told_slots: dict[str, int] = {}
        """Slots of hosts that may have processes, by the events that the fleet has handled."""
        self.next_pid = 100

    def say(self, host: str, event: ProviderEvent) -> None:
        if self.hosts[host].is_heard:
            self.on_way.append((host, event))

    # -- what happens -------------------------------------------------------------------------------------------------

    def offer(self, number: int) -> None:
        if len(self.hosts) < 3:
            host = "abc"[len(self.hosts)]
            self.hosts[host] = Host(1 + number % 3)
            self.hello(host)

    def hello(self, host: str) -> None:
        it = self.hosts[host]
        running = [Started(worker_id, pid) for worker_id, pid in it.running.items()]
        self.say(host, HostOffered(host, it.slots, running, list(it.ended.values())))

    def deliver(self, _: int = 0) -> None:
        if not self.on_way:
            return
        host, event = self.on_way.popleft()
        if isinstance(event, HostOffered) and host in {*self.told_slots, *self.fleet.leaving, *self.hosts}:
            self.told_slots.update({host: event.slots} if host not in self.fleet.leaving else {})
        if isinstance(event, HostLeaving | HostLost):
            self.told_slots.pop(host, None)
        self.reported.update(worker.worker_id for worker in self.fleet.on(event))

    def obey(self, _: int = 0) -> None:
        for order in self.fleet.take_orders():
            if isinstance(order, StartProcesses):
                assert self.told_slots.get(order.host), "nothing starts on a host that leaves or is lost"
                assert not self.ordered.keys() & set(order.worker_ids), "an id is used once"
                self.ordered.update(dict.fromkeys(order.worker_ids, order.host))
            if self.hosts[order.host].is_heard:
                self.carry_out(order)

    def carry_out(self, order: StartProcesses | KillProcess) -> None:
        it = self.hosts[order.host]
        if isinstance(order, KillProcess):
            self.die(order.host, order.worker_id, -order.number)
            return
        for worker_id in order.worker_ids:
            it.running[worker_id] = self.next_pid
            self.say(order.host, Started(worker_id, self.next_pid))
            self.next_pid += 1

    def die(self, host: str, worker_id: int, code: int) -> None:
        it = self.hosts[host]
        if it.running.pop(worker_id, None) is not None:
            it.ended[worker_id] = WorkerExited(worker_id, code, host=host)
            self.say(host, it.ended[worker_id])

    def exit(self, number: int) -> None:
        if found := self.living:
            host, worker_id, _ = found[number % len(found)]
            self.die(host, worker_id, number % 2)

    def connect(self, number: int) -> None:
        """A worker connects, perhaps before its start is known, and is then given a job."""
        if found := self.living:
            host, worker_id, pid = found[number % len(found)]
            worker = self.fleet.connect(worker_id, b"%d" % worker_id, pid)
            if worker is not None:
                assert host in self.told_slots, "nobody works on a host that leaves"
                worker.member_id = worker_id

    def kill(self, number: int) -> None:
        if found := [worker for worker in self.fleet if worker.state is ProcessState.CONNECTED]:
            self.fleet.kill(found[number % len(found)], 0.0)

    def cut(self, number: int) -> None:
        """A host is cut off: what is on its way from it is lost, but its first offer."""
        host = self.some(number)
        if host:
            self.hosts[host].is_heard = False
            kept = [each for each in self.on_way if each[0] != host or isinstance(each[1], HostLeaving)]
            self.on_way = deque(kept)

    def join_again(self, number: int) -> None:
        host = self.some(number)
        if host and not self.hosts[host].is_heard:
            self.hosts[host].is_heard = True
            self.hello(host)

    def leave(self, number: int) -> None:
        host = self.some(number)
        if host:
            self.on_way.append((host, HostLeaving(host)))

    def lose(self, number: int) -> None:
        """A host is lost; a process of it may run on, but nothing is heard of it any more."""
        if host := self.some(number):
            self.lose_host(host)

    def lose_host(self, host: str) -> None:
        if self.hosts[host].is_up:
            self.hosts[host].is_heard = self.hosts[host].is_up = False
            self.on_way = deque(each for each in self.on_way if each[0] != host)
            self.on_way.append((host, HostLost(host, "its cable was cut")))
            self.hosts[host].running.clear()

    def some(self, number: int) -> str:
        up = [host for host, it in self.hosts.items() if it.is_up]
        return up[number % len(up)] if up else ""

    @property
    def living(self) -> list[tuple[str, int, int]]:
        return [(host, *each) for host, it in self.hosts.items() for each in it.running.items()]

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """At any time: no slot has two processes, and no exit was reported twice."""
        wanted = [worker for worker in self.fleet if worker.state is not ProcessState.KILLED]
        for host, count in Counter(worker.host for worker in wanted).items():
            assert count <= self.hosts[host].slots
        assert all(count == 1 for count in self.reported.values()), self.reported
        assert self.fleet.size == sum(self.told_slots.values())
        if all(it.is_heard for it in self.hosts.values()):
            assert {worker.worker_id for worker in self.fleet} >= {worker_id for _, worker_id, _ in self.living} - {
                worker_id for worker_id in self.ordered if self.reported[worker_id]
            }

    def settle(self) -> None:
        """Let all messages arrive; then each slot has its process, and each other process was reported once."""
        for number in range(3):
            self.join_again(number)
        for _ in range(100):
            self.deliver()
            self.obey()
            for host in self.fleet.vacated:
                self.lose_host(host)
            for worker in [each for each in self.fleet if each.host in self.fleet.leaving]:
                worker.member_id = -1
            self.check()
        assert not self.on_way
        assert sorted((worker.host, worker.worker_id, worker.pid) for worker in self.fleet) == sorted(self.living)
        for it in self.hosts.values():
            assert len(it.running) == (it.slots if it.is_up else 0)
        runs = {worker_id for _, worker_id, _ in self.living}
        assert self.reported == Counter(self.ordered.keys() - runs)


STEPS = ("offer", "deliver", "obey", "exit", "connect", "kill", "cut", "join_again", "leave", "lose")


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.tuples(st.sampled_from(STEPS + STEPS[1:3] * 2), st.integers(0, 5)), max_size=60))
def test_whatever_happens_each_slot_has_one_process_and_each_end_is_told_once(steps: list[tuple[str, int]]) -> None:
    world = World()
    world.offer(1)
    for _ in range(3):
        world.deliver()
        world.obey()
    for name, number in steps:
        getattr(world, name)(number)
        world.check()
    world.settle()


def offered(slots: int = 1, heed_s: float = 0.0) -> Fleet:
    fleet = Fleet({"a": slots}, heed_s)
    assert fleet.take_orders() == []
    assert fleet.on(HostOffered("a", slots)) == []
    assert fleet.take_orders() == [StartProcesses("a", tuple(range(slots)))]
    return fleet


@pytest.mark.parametrize("slots", [1, MOST_EARLY + 2])
def test_a_fleet_gives_up_after_too_many_early_exits_in_a_row(slots: int) -> None:
    fleet, most = offered(slots), max(MOST_EARLY, slots)
    for worker_id in range(most):
        fleet.on(WorkerExited(worker_id, 1))
    assert fleet.given_up is None
    assert fleet.connect(most, b"x", 100) is not None
    fleet.on(WorkerExited(most, 1))
    for worker_id in range(most + 1, 2 * most + 1):
        fleet.on(Started(worker_id, worker_id))
        fleet.on(WorkerExited(worker_id, 1))
    assert fleet.given_up is None, "one has connected in between"
    last = WorkerExited(2 * most + 1, 7, error="it is not there")
    fleet.on(last)
    assert fleet.given_up == last


def test_a_slot_that_is_taken_away_is_not_filled_and_no_fault() -> None:
    fleet = offered(3)
    for worker_id in range(3):
        fleet.on(HostOffered("a", 2 - worker_id))
        fleet.on(WorkerExited(worker_id, -9))
    assert (fleet.take_orders(), fleet.slots, fleet.may_grow, fleet.given_up) == ([], {}, False, None)


def test_an_interrupt_that_is_not_heeded_becomes_a_kill_unless_it_is_spared() -> None:
    fleet = offered(2, heed_s=10.0)
    workers = [fleet.connect(worker_id, b"%d" % worker_id, 100 + worker_id) for worker_id in range(2)]
    for worker in workers:
        assert worker is not None
        worker.member_id = 7
        for now in (5.0, 6.0):
            fleet.kill(worker, now)
    assert fleet.take_orders() == [KillProcess("a", worker_id, signal.SIGINT) for worker_id in range(2)]
    assert fleet.deadline_s == 15.0
    assert workers[0] is not None
    fleet.spare(workers[0])
    fleet.tick(14.9)
    assert fleet.take_orders() == []
    for now in (15.0, 99.0):
        fleet.tick(now)
    assert fleet.take_orders() == [KillProcess("a", 1, signal.SIGKILL)]
    assert fleet.free == []
    assert [worker.worker_id for worker in fleet.of([7])] == [1]
    assert fleet.on(WorkerExited(0, 0)) == [workers[0]]


def test_processes_of_another_fleet_are_killed_and_their_ids_not_used() -> None:
    fleet = Fleet({})
    assert fleet.on(HostOffered("a", 2, [Started(0, 100), Started(4, 104)])) == []
    kills = [KillProcess("a", worker_id, signal.SIGKILL) for worker_id in (0, 4)]
    assert fleet.take_orders() == kills
    for worker_id in (0, 4):
        fleet.on(WorkerExited(worker_id, -9))
    started = [worker_id for order in fleet.take_orders() for worker_id in getattr(order, "worker_ids", ())]
    assert started == [5, 6]


def test_what_is_lost_with_a_host_is_told_with_the_reason() -> None:
    fleet = offered(1)
    worker = fleet.connect(0, b"x", 100)
    assert worker is not None
    assert fleet.on(HostLost("a", "it is down")) == [worker]
    assert worker.exited is not None
    assert words_of(worker.exited) == "is lost with its host: it is down"
    assert fleet.speaker(b"x", None) is None
    assert fleet.on(HostLost("a", "it is down")) == []


def test_jobs_grow_where_they_are_and_shrink_where_they_have_fewest() -> None:
    fleet = Fleet({})
    for host, slots in (("a", 2), ("b", 3)):
        fleet.on(HostOffered(host, slots))
    for worker_id in range(5):
        assert fleet.connect(worker_id, b"%d" % worker_id, worker_id) is not None
    assert fleet.spread({}, 2) == {"b": 2}
    assert fleet.spread({"a": 1}, 3) == {"a": 3}, "a has two more"
    assert fleet.spread({}, 2, reserved=["b", "b"]) == {"a": 2}
    assert fleet.spread({"a": 1, "b": 2}, 2) == {"b": 2}
    fleet.on(HostLeaving("b"))
    assert [worker.host for worker in fleet.free] == ["a", "a"]
