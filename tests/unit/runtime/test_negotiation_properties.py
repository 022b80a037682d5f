"""Any interleaving of any program gives what a sequential model gives: the answer, an error for all, or a deadlock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.control.messages import Orders, decode, encode
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.rank_set import RankSet
from tests.support.runtime.programs import Job, Move, Simulation, jobs, model


class Flat(Simulation):
    """All ranks speak to the coordinator itself."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        super().__init__(job, rng)
        static = [job.sets[label] for label in job.static]
        self.negotiation = Negotiation(["a"] * len(job.programs), static, job.fusion, job.capacity)
        self.sequence = 0

    def inner(self) -> Iterator[Move]:
        if self.negotiation.undecided:
            yield self.decide

    def arrive(self, r: int) -> None:
        for entry in self.out[r].pop(0):
            if self.negotiation.submit(RankSet.of([r]), entry, now=0.0):
                self.inbox[r].append((entry.process_set, entry.name))

    def leave(self, r: int) -> None:
        while self.out[r]:
            self.arrive(r)
        self.gone.add(r)
        self.negotiation.remove_rank(r, f"rank {r} has left")

    def decide(self) -> None:
        for ranks, order in self.negotiation.decide(now=0.0):
            assert order.sequence > self.sequence
            self.sequence = order.sequence
            assert decode(encode(Orders(1, [order]))) == Orders(1, [order])
            self.check(order)
            assert order.error or self.gone.isdisjoint(ranks)
            for r in ranks:
                self.inbox[r].append(order)


@settings(max_examples=10 * settings().max_examples)
@given(jobs())
def test_any_interleaving_gives_what_the_model_gives(job: Job) -> None:
    expected = model(job.programs, job.sets, set(job.static) | {"all"}, job.window)
    calls = sum(map(len, job.programs))
    assert job.faults or len(expected) == calls, "programs that agree never deadlock"
    for seed in job.seeds:
        simulation = Flat(job, random.Random(seed))
        while simulation.step():
            pass
        assert simulation.finish() == expected
        if len(expected) == calls:
            assert simulation.negotiation.statistics()["pending"] == 0


@settings(max_examples=4 * settings().max_examples)
@given(jobs(), st.integers(0, 60))
def test_nobody_waits_for_a_rank_that_has_left(job: Job, moment: int) -> None:
    rng = random.Random(job.seeds[0])
    simulation = Flat(job, rng)
    for step in itertools.count():
        if step == moment:
            simulation.leave(rng.randrange(len(job.programs)))
        if not simulation.step() and step >= moment:
            break
    for waiting in simulation.negotiation.waiting():
        assert simulation.gone.isdisjoint((*waiting.ready, *waiting.missing))
