"""A controller, relays in processes of their own, and the real lanes of workers below them, on one machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import msgspec
import pytest

from farandole.collective import Array, DType, Kind
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.messages import Hello, Order
from farandole.errors import AbortError
from farandole.runtime.ask import Ask
from farandole.runtime.call import Call, Outcome
from farandole.runtime.failure import Failure
from farandole.runtime.link import Link, Seat
from farandole.runtime.negotiated import NegotiatedLane
from farandole.runtime.root import Root
from farandole.settings import Settings

DEADLINE_S = 30.0
RADIX, LOCAL = 2, 2

AGENT_PROGRAM = """
import select, sys, time
import msgspec
from farandole.control.keys import JobKeys
from farandole.runtime.agent_link import AgentLink
from farandole.runtime.relay import Relay

address, secret, host = sys.stdin.readline().split()
keys = JobKeys.from_secret(secret)
relay = Relay(keys, host, silence_s=0.0)
print(relay.address, flush=True)
link = AgentLink(address, keys, host, silence_s=0.0, relay=relay)
poll = select.poll()
for fd in (0, *link.fds):
    poll.register(fd, select.POLLIN)
ready = []
while (0, select.POLLIN) not in ready and (0, select.POLLHUP) not in ready:
    for _ in link.receive():
        pass
    due_s = link.deadline_s
    ready = poll.poll(None if due_s is None else max(0.0, due_s - time.monotonic()) * 1000)
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
        self.process.stdin.write(f"{address} {secret} {name}\n")
        self.process.stdin.flush()
        self.address = self.process.stdout.readline().strip()

    def end(self) -> dict[str, int]:
        """Let it go; what its relay counted."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        return msgspec.json.decode(out or "{}", type=dict[str, int])

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.communicate()


@final
class Worker:
    """The negotiated lane of one rank; an order is carried out by noting it."""

    def __init__(self, place: int, size: int, host: str, address: str, secret: str) -> None:
        self.link = Link(Seat(place, size, host, address, secret), DEADLINE_S)
        self.hello = Hello(self.link.worker, place, size, host, place, "1", ["gloo"], 2, 40, [])
        self.done: list[tuple[str, ...]] = []

    def join(self) -> None:
        """Wait for the others."""
        self.welcome = self.link.join(self.hello)
        self.lane = NegotiatedLane(
            self.link.orders,
            self.link.up.send,
            self.welcome.generation,
            self.perform,
            self.end,
            8,
        )

    def perform(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[Outcome]]:
        self.done.append(tuple(order.names))
        return [[Outcome()] for _ in mine]

    def end(self, failure: Any) -> None:
        self.lane.end(failure)

    def close(self) -> None:
        """Leave."""
        self.lane.end(Failure(AbortError, "the test is over"))
        self.lane.close()
        self.link.close()

    def reduce(self, name: str) -> None:
        array = Array(0, 1, DType.FLOAT32)
        self.lane.submit(Ask(0, name, Kind.ALLREDUCE, [Call(Kind.ALLREDUCE, name, array, (1,))]), False).wait()


@final
class Job:
    """A root, served by a thread, and below it ``hosts`` with ``LOCAL`` workers each."""

    def __init__(self, hosts: int, held: contextlib.ExitStack) -> None:
        secret, size = new_secret(), hosts * LOCAL
        self._router = held.enter_context(Router(JobKeys.from_secret(secret)))
        self.root = Root(self._router, Settings(tree_radix=RADIX, engine="gloo"), size)
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
        places = [(place, self.hosts[place % hosts]) for place in range(size)]
        self.workers = [Worker(place, size, host.name, host.address, secret) for place, host in places]
        self._threads = held.enter_context(ThreadPoolExecutor(size))
        for worker in self.workers:
            held.callback(worker.close)

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
    job = make_job(5)
    job.all(Worker.join)
    assert sorted(worker.welcome.rank for worker in job.workers) == list(range(10))
    for _ in range(20):
        job.all(lambda worker: worker.reduce("loss"))
    assert {tuple(worker.done) for worker in job.workers} == {(("loss",),) * 20}
