"""The control plane of a job in virtual time: the real state machines, and a queue of events instead of sockets.

    world = World(ranks=27360, per_host=6, radix=32)
    world.begin()
    step = world.collective("loss")
    step.order_s, step.root_received, step.busiest_relay

Every process is a server that takes in what has arrived, decides, and sends: its loop's turn, at ``Costs`` per message.
Nothing here decides: ``Controller`` and ``Relaying`` are those that run in a job.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from farandole.collective import DType, Kind
from farandole.control.agent_messages import RELAY
from farandole.control.message import Message
from farandole.control.messages import AskProgress, Entry, Hello, Orders, Progress, Signature, Submit
from farandole.runtime.controller.controller import Controller
from farandole.runtime.controller.root import Tree
from farandole.runtime.relay.relaying import Relaying
from farandole.settings import Settings

ROOT = ""
SIGNATURE = Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[1]])


@final
class Costs(NamedTuple):
    """What a process spends on one message that it receives or sends, and what a message spends on the network."""

    receive_s: float
    send_s: float
    latency_s: float


NOTHING = Costs(0.0, 0.0, 0.0)


@final
class Step(NamedTuple):
    """What one collective took: until all ranks had their order after the last was ready, and in messages."""

    order_s: float
    root_busy_s: float
    root_received: int
    root_sent: int
    busiest_relay: int


@final
@dataclass(slots=True)
class _Process:
    """A loop: ``serve`` takes in what has arrived and sends; ``due_s`` says when it has to wake up by itself."""

    name: str
    serve: Callable[[list[tuple[bytes, Message]]], None]
    due_s: Callable[[], float | None]
    inbox: list[tuple[bytes, Message]]
    clock_s: float = 0.0
    busy_s: float = 0.0
    awake: bool = False
    messages: int = 0


@final
class World:
    """``ranks`` on hosts of ``per_host`` each; with a ``radix``, hosts have relays that form a tree."""

    def __init__(
        self, ranks: int, per_host: int, radix: int | None, costs: Costs = NOTHING, stall_warning_s: float = 60.0
    ) -> None:
        self.size, self.per_host, self.radix, self.costs = ranks, per_host, radix, costs
        self.now, self.reports = 0.0, list[str]()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._rng = itertools.count(), random.Random(0)
        self._acting: _Process | None = None
        settings = Settings(engine="tcp", stall_warning_s=stall_warning_s, stall_shutdown_s=0.0)
        self.controller = Controller(self._to_below, settings, ranks, lambda: self.now)
        self.controller.watchdog.report = self._report
        self.controller.watchdog.request_stack = lambda hello: self.controller.stack_arrived(hello.worker_id, "")
        self.root = _Process(ROOT, self._serve_root, self._root_due_s, [])
        self._processes = {ROOT: self.root}
        self._parents: dict[str, str] = {}
        self._ordered = dict[int, Orders]()
        self._ordered_s = 0.0
        if radix is not None:
            tree = Tree(radix)
            for host in map(str, range(math.ceil(ranks / per_host))):
                self._parents[host] = tree.add(host)
                self._add_relay(host)

    @property
    def depth(self) -> int:
        """Relays between a worker and the controller."""
        depth, host = 0, str(len(self._parents) - 1) if self._parents else ROOT
        while host != ROOT:
            depth, host = depth + 1, self._parents[host]
        return depth

    # -- what happens -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Form the job, in no time."""
        costs, self.costs = self.costs, NOTHING
        for rank in range(self.size):
            hello = Hello("", rank, self.size, f"h{rank // self.per_host}", rank, "1", ["tcp"], 2, 40, [])
            self._say(rank, hello, self.now)
        self._run(lambda: False)
        self.costs = costs

    def collective(self, name: str, spread_s: float = 0.0, late_s: float = 0.0) -> Step:
        """All ranks become ready within ``spread_s``, and one is ``late_s`` later; returns when all have their order.

        Once something has been reported it returns, too: a rank that is ``math.inf`` late never comes.
        """
        before = [(process.messages, process.busy_s) for process in self._processes.values()]
        received, sent = self._root_counts()
        entry = self._entry(name)
        self._ordered, begin_s, ready_s = {}, self.now, self.now
        for rank in range(self.size):
            moment_s = begin_s + self._rng.random() * spread_s + (late_s if rank == self.size // 2 else 0.0)
            if moment_s < math.inf:
                ready_s = max(ready_s, moment_s)
                self._say(rank, Submit(1, entry), moment_s)
        self._run(lambda: len(self._ordered) == self.size or bool(self.reports))
        received_now, sent_now = self._root_counts()
        after = [(process.messages, process.busy_s) for process in self._processes.values()]
        return Step(
            self._ordered_s - ready_s,
            after[0][1] - before[0][1],
            received_now - received,
            sent_now - sent,
            max((b[0] - a[0] for a, b in zip(before[1:], after[1:], strict=True)), default=0),
        )

    def _entry(self, name: str) -> Entry:
        """As ranks say it: by its number, once they were told one."""
        number = next((n for orders in self._ordered.values() for n in orders.orders[0].cached), -1)
        return Entry(0, name, number) if number >= 0 else Entry(0, name, signature=SIGNATURE)

    def _run(self, enough: Callable[[], bool]) -> None:
        while self._events and not enough():
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, moment_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_s, next(self._numbers), happen))

    # -- processes ----------------------------------------------------------------------------------------------------

    def _add_relay(self, host: str) -> None:
        relaying = Relaying(self._to_below, lambda message: self._to_parent(host, message), lambda: self.now)

        def serve(messages: list[tuple[bytes, Message]]) -> None:
            for identity, message in messages:
                if identity == b"":
                    relaying.from_above(message)
                else:
                    relaying.from_below(identity, message)
            relaying.flush()

        self._processes[host] = _Process(host, serve, lambda: relaying.deadline_s, [])

    def _serve_root(self, messages: list[tuple[bytes, Message]]) -> None:
        for identity, message in messages:
            self.controller.handle(identity, message)
        deadline_s = self.controller.deadline()
        if deadline_s is not None and deadline_s <= self.now:
            self.controller.tick(self.now)

    def _root_due_s(self) -> float | None:
        return self.controller.deadline()

    def _arrive(self, process: _Process, identity: bytes, message: Message) -> None:
        process.inbox.append((identity, message))
        process.messages += 1
        self._wake(process, self.now)

    def _wake(self, process: _Process, moment_s: float) -> None:
        if not process.awake:
            process.awake = True
            self._at(max(moment_s, process.clock_s), lambda: self._turn(process))

    def _turn(self, process: _Process) -> None:
        messages, process.inbox, process.awake = process.inbox, [], False
        process.clock_s = self.now + len(messages) * self.costs.receive_s
        self._acting = process
        process.serve(messages)
        process.busy_s += process.clock_s - self.now
        due_s = process.due_s()
        if process.inbox:
            self._wake(process, process.clock_s)
        elif due_s is not None:
            self._at(max(due_s, process.clock_s), lambda: self._look_again(process))

    def _look_again(self, process: _Process) -> None:
        due_s = process.due_s()
        if due_s is not None and due_s <= self.now:
            self._wake(process, self.now)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _send(self, happen: Callable[[], None]) -> None:
        assert self._acting is not None
        self._acting.clock_s += self.costs.send_s
        self._acting.messages += 1
        self._at(self._acting.clock_s + self.costs.latency_s, happen)

    def _to_below(self, identity: bytes, message: Message) -> None:
        if identity.startswith(RELAY):
            relay = self._processes[identity.removeprefix(RELAY).decode()]
            self._send(lambda: self._arrive(relay, b"", message))
        else:
            rank = int(identity[:-1])
            self._send(lambda: self._take(rank, message))

    def _to_parent(self, host: str, message: Message) -> None:
        parent = self._processes[self._parents[host]]
        self._send(lambda: self._arrive(parent, RELAY + host.encode(), message))

    def _say(self, rank: int, message: Message, moment_s: float) -> None:
        """A worker sends: it has a processor of its own."""
        home = self._processes[str(rank // self.per_host) if self.radix is not None else ROOT]
        self._at(moment_s + self.costs.latency_s, lambda: self._arrive(home, b"%du" % rank, message))

    def _take(self, rank: int, message: Any) -> None:
        if isinstance(message, Orders):
            self._ordered[rank], self._ordered_s = message, self.now
        elif isinstance(message, AskProgress):
            self._say(rank, Progress(1, "", ""), self.now)

    def _report(self, text: str) -> None:
        self.reports.append(text)

    def _root_counts(self) -> tuple[int, int]:
        statistics = self.controller.statistics()
        return statistics["received"], statistics["sent"]


def steps(world: World, name: str, count: int, spread_s: float) -> Iterator[Step]:
    """``count`` collectives of one name as they are once everybody knows it by its number."""
    for _ in range(2):
        world.collective(name, spread_s)
    for _ in range(count):
        yield world.collective(name, spread_s)


def stall_report_s(world: World, name: str) -> float:
    """One rank never comes: how long after the others it is reported."""
    begin_s = world.now
    world.collective(name, late_s=math.inf)
    return world.now - begin_s
