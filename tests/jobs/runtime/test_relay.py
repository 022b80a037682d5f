"""A controller, relays in processes of their own, and the real lanes of workers below them, on one machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import msgspec
import pytest

from farandole.collective import Array, DType, Kind
from farandole.control.channel import Dealer, Router
from farandole.control.exits import WorkerExited
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Envelopes, Exchange, Hello, Order, Refuse, Waits
from farandole.errors import AbortError
from farandole.runtime.controller.root import Root
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.call import Call, CallResult
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.negotiated import NegotiatedLane
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.relay import relay as relays
from farandole.runtime.relay.relay import Relay
from farandole.runtime.session.control_thread import ControlThread
from farandole.runtime.session.link import Assignment, Link
from farandole.settings import Settings
from farandole.topology import Topology
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S
RADIX, LOCAL = 2, 2

AGENT_PROGRAM = """
import select, sys, time
import msgspec
from farandole.control.keys import JobKeys
from farandole.runtime.relay import relay as relays
from farandole.runtime.relay.relay import Relay, RelayedAgentLink

address, secret, host, hold_s = sys.stdin.readline().split()
keys = JobKeys.from_secret(secret)
relay = Relay(keys, host, silence_s=0.0, hold_s=float(hold_s))
print(relay.address, flush=True)
link = RelayedAgentLink(relay, address, keys, host, silence_s=0.0)
poll = select.poll()
for fd in (0, *link.fds):
    poll.register(fd, select.POLLIN)
while True:
    for _ in link.receive():
        pass
    due_s = link.deadline_s
    ready = dict(poll.poll(None if due_s is None else max(0.0, due_s - time.monotonic()) * 1000))
    if 0 in ready:
        if not sys.stdin.readline():
            break
        print(msgspec.json.encode(relay.statistics()).decode(), flush=True)
link.close()
"""


@final
class Host:
    """An agent with a relay, in a process."""

    def __init__(self, name: str, address: str, secret: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{address} {secret} {name} {DEADLINE_S}\n")
        self.process.stdin.flush()
        self.address = self.process.stdout.readline().strip()

    def statistics(self) -> dict[str, int]:
        """What its relay has counted."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline(), type=dict[str, int])

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.communicate()


@final
class Worker:
    """The negotiated lane of one rank; an order is carried out by noting it."""

    def __init__(self, worker_id: int, size: int, host: str, address: str, secret: str) -> None:
        self.link = Link(Assignment(worker_id, size, host, address, secret), DEADLINE_S)
        self.hello = Hello(self.link.worker, worker_id, size, host, worker_id, "1", ["tcp"], 2, 40, [])
        self.done: list[tuple[str, ...]] = []

    def join(self) -> None:
        """Wait for the others."""
        self.welcome = self.link.join(self.hello)
        self.lane = NegotiatedLane(
            PeerLane(Topology.of(0, ("a",), 0), None, self.link.orders, ActiveCollectives(), lambda: None),
            self.link.up.send,
            self.welcome.generation,
            self.perform,
            self.end,
            Reentry(),
            8,
            eager=False,
        )

        self.control = ControlThread(
            self.link.control, self.link.up, self.welcome.generation, self, ActiveCollectives(), Limits(DEADLINE_S, 0.0)
        )

    is_interactive = False

    def generation_ended(self, failure: Failure) -> None:
        self.end(failure)

    def progress(self) -> tuple[str, str]:
        return "", ""

    def waits(self) -> Waits:
        return Waits(self.welcome.generation)

    def change(self, reason: str) -> None:
        """Nothing asks for one."""

    def watch(self, message: object) -> None:
        """Nobody watches."""

    def forget_orders(self) -> None:
        """There are none."""

    def timeline(self, path: str, mark_cycles: bool) -> None:
        """There is none."""

    def perform(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
        self.done.append(tuple(order.names))
        return [[CallResult()] for _ in mine]

    def end(self, failure: Failure) -> None:
        self.lane.end(failure)

    def close(self) -> None:
        """Leave."""
        self.lane.end(Failure(AbortError, "the test is over"))
        self.lane.close()
        self.control.stop()
        self.link.close()

    def reduce_in_vain(self) -> str:
        """Why it cannot be done."""
        with pytest.raises(AbortError) as error:
            self.reduce("loss")
        return str(error.value)

    def reduce(self, name: str) -> None:
        array = Array(0, 1, DType.FLOAT32)
        self.lane.submit(Announcement(0, name, Kind.ALLREDUCE, [Call(Kind.ALLREDUCE, name, array, (1,))]), False).wait()


@final
class Job:
    """A root, served by a thread, and below it ``hosts`` with ``LOCAL`` workers each."""

    def __init__(self, hosts: int, held: contextlib.ExitStack) -> None:
        secret, size = new_secret(), hosts * LOCAL
        self._router = held.enter_context(Router(JobKeys.from_secret(secret)))
        self.root = Root(self._router, Settings(tree_radix=RADIX, engine="tcp", host_timeout_s=0.0), size)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        held.callback(os.close, self._bell)
        self._router.watch(self._bell)
        thread = threading.Thread(target=self._serve)
        thread.start()
        held.callback(thread.join)
        held.callback(os.eventfd_write, self._bell, 1)
        self.hosts = []
        for i in range(hosts):
            self.hosts.append(Host(f"host{i}", self._router.address, secret))
            held.callback(self.hosts[-1].kill)
        self._secret, self._held = secret, held
        self._threads = held.enter_context(ThreadPoolExecutor(size))
        self.workers = self._begin(self.hosts, size)

    def begin_again(self, without: Host) -> None:
        """The job goes on, without the workers of one host."""
        for worker_id in (worker.hello.worker_id for worker in self.workers if worker.hello.host == without.name):
            self.root.controller.worker_exited(
                WorkerExited(worker_id, -9, f"rank {worker_id} was killed", pid=worker_id)
            )
        self.workers = self._begin([host for host in self.hosts if host is not without], len(self.workers))

    def _begin(self, hosts: Sequence[Host], size: int) -> list[Worker]:
        homes = [(worker_id, self.hosts[worker_id % len(self.hosts)]) for worker_id in range(size)]
        workers = [Worker(worker_id, size, h.name, h.address, self._secret) for worker_id, h in homes if h in hosts]
        for worker in workers:
            self._held.callback(worker.close)
        return workers

    def all(self, what: Callable[[Worker], Any]) -> list[Any]:
        """Do it on every worker at once."""
        return [future.result(DEADLINE_S) for future in [self._threads.submit(what, worker) for worker in self.workers]]

    def _serve(self) -> None:
        while self._bell not in self.root.turn(None):
            pass


@pytest.fixture
def make_job() -> Iterator[Callable[[int], Job]]:
    with contextlib.ExitStack() as held:
        yield lambda hosts: Job(hosts, held)


def test_named_collectives_go_through_a_tree_of_relays(make_job: Callable[[int], Job]) -> None:
    """Ranks of one host are no neighbours here, and two relays are two steps from the root."""
    job = make_job(5)
    job.all(Worker.join)
    assert sorted(worker.welcome.rank for worker in job.workers) == list(range(10))
    steps, warm_up = 20, 3
    before: list[dict[str, int]] = []
    for step in range(warm_up + steps):
        if step == warm_up:
            before = [job.root.controller.statistics(), *(host.statistics() for host in job.hosts)]
        job.all(lambda worker: worker.reduce("loss"))
    after = [job.root.controller.statistics(), *(host.statistics() for host in job.hosts)]
    assert {tuple(worker.done) for worker in job.workers} == {(("loss",),) * (warm_up + steps)}
    root, *relays = [{name: then[name] - now[name] for name in now} for now, then in zip(before, after, strict=True)]
    assert root["received"] == root["sent"] == steps * RADIX
    for relay in relays:
        assert relay["to_above"] == relay["from_above"] == steps
        assert relay["from_below"] <= steps * (RADIX + LOCAL)
        assert relay["to_below"] <= steps * (RADIX + LOCAL)


def test_ranks_below_a_relay_that_dies_are_told_and_so_are_all_others(make_job: Callable[[int], Job]) -> None:
    job = make_job(4)
    job.all(Worker.join)
    job.all(lambda worker: worker.reduce("loss"))
    job.hosts[0].kill()
    told = job.all(Worker.reduce_in_vain)
    above = "was connected through host host0 to the others, and is cut off"
    assert any(above in text for text in told)
    assert all(above in text or "lost the controller" in text for text in told)


def test_the_survivors_of_a_relay_meet_again(make_job: Callable[[int], Job]) -> None:
    job = make_job(4)
    job.all(Worker.join)
    job.hosts[0].kill()
    job.all(Worker.reduce_in_vain)
    for worker in job.workers:
        worker.close()
    job.begin_again(without=job.hosts[0])
    job.all(Worker.join)
    job.all(lambda worker: worker.reduce("loss"))
    assert {worker.welcome.generation for worker in job.workers} == {2}


def _until(relay: Relay, routers: Sequence[Router], enough: Callable[[list[Any]], bool]) -> list[Any]:
    """What the routers have heard, when it is enough."""
    heard: list[Any] = []
    until_s = time.monotonic() + DEADLINE_S
    while not enough(heard):
        assert time.monotonic() < until_s, heard
        relay.serve()
        for router in routers:
            router.wait(0.01)
            while (got := router.recv()) is not None:
                heard.append(got[1])
    return heard


def _said_hello(heard: list[Any]) -> list[bytes]:
    return [each.identity for letters in heard if isinstance(letters, Envelopes) for each in letters.letters]


def test_who_says_hello_between_two_parents_is_heard_by_the_second() -> None:
    """And who has been refused, as the first was lost, is not."""
    keys = JobKeys.from_secret(new_secret())
    hello = Hello("w", 0, 1, "a", 1, "1", ["tcp"], 2, 40, [])
    with contextlib.ExitStack() as held:
        relay = Relay(keys, "a", silence_s=0.0)
        held.callback(relay.close)
        with Router(keys) as first, ThreadPoolExecutor(1) as dialling:
            relay.attach([first.address])

            def worker(name: bytes) -> Dealer:
                made = dialling.submit(Dealer, relay.address, name, keys, DEADLINE_S)
                _until(relay, [first], lambda _: made.done())
                return held.enter_context(made.result())

            refused, late = worker(b"refusedu"), worker(b"lateu")
            told = worker(b"refusedc")
            refused.send(hello)
            _until(relay, [first], lambda heard: _said_hello(heard) == [b"refusedu"])
        _until(relay, [], lambda _: bool(relay.lost))
        assert isinstance(told.recv(DEADLINE_S), Refuse)
        late.send(hello)
        while relay.statistics()["from_below"] < 2:
            relay.serve()
        with Router(keys) as second:
            relay.attach([second.address])
            assert _said_hello(_until(relay, [second], bool)) == [b"lateu"]


def test_more_than_may_wait_for_a_parent_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that talks without an end while nobody is above; who comes after it is heard by the next parent."""
    monkeypatch.setattr(relays, "KEPT_BYTES", 10_000)
    keys = JobKeys.from_secret(new_secret())
    hello = Hello("w", 0, 1, "a", 1, "1", ["tcp"], 2, 40, [])
    with contextlib.ExitStack() as held, ThreadPoolExecutor(1) as dialling:
        relay = Relay(keys, "a", silence_s=0.0)
        held.callback(relay.close)

        def worker(name: bytes) -> Dealer:
            made = dialling.submit(Dealer, relay.address, name, keys, DEADLINE_S)
            _until(relay, [], lambda _: made.done())
            return held.enter_context(made.result())

        endless, told = worker(b"endlessu"), worker(b"endlessc")
        endless.send(hello)
        for number in range(30):
            endless.send(Exchange(1, f"key {number}", [0], b"x" * 1000))
        _until(relay, [], lambda _: relay.statistics()["from_below"] > 30)
        refused = told.recv(DEADLINE_S)
        assert isinstance(refused, Refuse)
        for reason in (refused.reason, relay.lost):  # not one and the same where it came in several turns
            assert "wait for that connection to be made, and 10000 may" in reason
        assert sum(len(msgspec.msgpack.encode(each)) for each in relay._kept) <= 10_000
        worker(b"lateu").send(hello)
        _until(relay, [], lambda _: relay.statistics()["from_below"] > 31)
        with Router(keys) as parent:
            relay.attach([parent.address])
            _until(relay, [parent], lambda heard: b"lateu" in _said_hello(heard))
