"""Through a tree of relays, any interleaving of any program gives what it gives without one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, final

from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.control.agent_messages import RELAY
from farandole.control.message import Message
from farandole.control.messages import Abort, Hello, Leave, Orders, Resend, Submit, Welcome, decode, encode
from farandole.runtime.controller.controller import Controller
from farandole.runtime.controller.root import Tree
from farandole.runtime.relay.relaying import Relaying
from farandole.settings import Settings
from tests.support.runtime.programs import Job, Move, Simulation, jobs, model

ROOT = ""


@final
class Branched(Simulation):
    """A controller and relays, with first-in-first-out wires between neighbours. Ranks sit on hosts at random."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        super().__init__(job, rng)
        self.size = len(job.programs)
        self.controller = Controller(
            partial(self.sent, ROOT),
            Settings(engine="tcp", stall_check=False, fusion_threshold_bytes=job.fusion, cache_capacity=job.capacity),
            self.size,
            lambda: 0.0,
        )
        self.now = 0.0
        self.stirred: dict[str, None] = {}
        """The relays that have taken something in since they last sent."""
        self.wires: dict[tuple[str, str], list[tuple[bytes, bytes]]] = {}
        hosts, tree = [f"h{i}" for i in range(rng.randint(1, 5))], Tree(radix=2)
        self.parents = {host: tree.add(host) for host in hosts}
        self.relays = {
            host: Relaying(partial(self.sent, host), partial(self.sent_up, host), lambda: self.now) for host in hosts
        }
        self.homes = [rng.choice([*hosts, ROOT]) for _ in range(self.size)]
        self.sequences = [0] * self.size
        self.ended: dict[int, Abort] = {}
        self.begin([[*job.sets[label]] for label in job.static])

    def begin(self, static: list[list[int]]) -> None:
        for r, home in enumerate(self.homes):
            self.say(r, Hello("", r, self.size, home or "root", r, "1", ["solo", "shm", "tcp"], 2, 40, static))
        self.settle()

    def settle(self) -> None:
        """Let everything happen between the ranks that can."""
        while moves := list(self.inner()):
            moves[0]()

    def inner(self) -> Iterator[Move]:
        deadline = self.controller.deadline()
        if deadline is not None and deadline <= 0.0:
            yield partial(self.controller.tick, 0.0)
        for ends, wire in self.wires.items():
            if wire:
                yield partial(self.carry, *ends)
        for host in self.stirred:
            yield partial(self.flush, host)
        held = [relay.deadline_s for relay in self.relays.values() if relay.deadline_s is not None]
        if held:
            yield partial(self.wait, min(held))

    # -- wires --------------------------------------------------------------------------------------------------------

    def say(self, r: int, message: Message) -> None:
        """Rank ``r`` sends something, which is there at once."""
        home, identity = self.homes[r], b"%du" % r
        if home == ROOT:
            self.controller.handle(identity, message)
        else:
            self.relays[home].from_below(identity, message)
            self.stirred[home] = None

    def sent(self, source: str, identity: bytes, message: Message) -> None:
        target = identity.decode()
        self.wires.setdefault((source, target), []).append((identity, encode(message)))

    def sent_up(self, host: str, message: Message) -> None:
        self.wires.setdefault((host, self.parents[host]), []).append((RELAY + host.encode(), encode(message)))

    def carry(self, source: str, target: str) -> None:
        identity, frame = self.wires[source, target].pop(0)
        message = decode(frame)
        if target.startswith(RELAY.decode()):
            self.relays[target.removeprefix(RELAY.decode())].from_above(message)
            self.stirred[target.removeprefix(RELAY.decode())] = None
        elif target == ROOT:
            self.controller.handle(identity, message)
        elif target in self.relays:
            self.relays[target].from_below(identity, message)
            self.stirred[target] = None
        else:
            self.take(int(target[:-1]), target[-1], message)

    def wait(self, moment: float) -> None:
        self.now = max(self.now, moment)
        for host in self.relays:
            self.flush(host)

    def flush(self, host: str) -> None:
        """A turn of the loop of a relay ends."""
        self.stirred.pop(host, None)
        self.relays[host].flush()

    def take(self, r: int, suffix: str, message: Any) -> None:
        if isinstance(message, Welcome):
            assert (suffix, message.rank) == ("c", r)
        elif isinstance(message, Orders):
            assert suffix == "o"
            for order in message.orders:
                assert order.sequence > self.sequences[r]
                self.sequences[r] = order.sequence
                self.check(order)
            self.inbox[r] += message.orders
        elif isinstance(message, Resend):
            self.inbox[r] += [(message.process_set, name) for name in message.names]
        else:
            assert isinstance(message, Abort)
            self.ended[r] = message

    # -- ranks --------------------------------------------------------------------------------------------------------

    def arrive(self, r: int) -> None:
        for entry in self.out[r].pop(0):
            self.say(r, Submit(1, entry))

    def leave(self, r: int) -> None:
        while self.out[r]:
            self.arrive(r)
        self.gone.add(r)
        self.say(r, Leave(1))


@settings(max_examples=6 * settings().max_examples)
@given(jobs())
def test_a_tree_changes_nothing(job: Job) -> None:
    expected = model(job.programs, job.sets, set(job.static) | {"all"}, job.window)
    for seed in job.seeds:
        simulation = Branched(job, random.Random(seed))
        while simulation.step():
            pass
        assert simulation.finish() == expected
        assert not simulation.ended


@settings(max_examples=4 * settings().max_examples)
@given(jobs(), st.integers(0, 60))
def test_nobody_waits_for_a_rank_that_has_left_a_tree(job: Job, moment: int) -> None:
    rng = random.Random(job.seeds[0])
    simulation = Branched(job, rng)
    for step in itertools.count():
        if step == moment:
            simulation.leave(rng.randrange(len(job.programs)))
        if not simulation.step() and step >= moment:
            break
    everybody = {key for r, rank in enumerate(simulation.ranks) if r not in simulation.gone for key in rank.inflight}
    (gone,) = simulation.gone
    assert all(gone not in job.sets[where] for where, _ in everybody)
