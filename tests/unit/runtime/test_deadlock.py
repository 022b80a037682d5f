"""Deadlocks, told from what ranks say of their waits: every certain one, and never in a program that would go on."""

from __future__ import annotations

import random
from typing import final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.collective import Kind
from farandole.control.messages import ThreadWait, Waits
from farandole.runtime.coordination.deadlock import Deadlock, DeadlockCheck, DeadlockDetector
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.rank_set import NOBODY, RankSet
from tests.support.runtime.programs import Job, Op, jobs
from tests.unit.runtime.test_negotiation_properties import Flat

# -- any program ------------------------------------------------------------------------------------------------------


_MIXED = ("all", "pair") * 6


@final
class Observed(Flat):
    """Ranks of which each says now and then, late, and on a way of its own, what it waits for."""

    def __init__(self, job: Job, rng: random.Random) -> None:
        super().__init__(job, rng)
        negotiation = self.negotiation
        self.detector = DeadlockDetector(["a"] * len(self.ranks), negotiation.groups, negotiation.awaited)
        self.words: list[list[Waits | int]] = [[] for _ in self.ranks]  # first in, first out; a number is a question
        self.verdict = ""
        self.doomed: set[tuple[int, int]] = set()

    def waits(self, r: int) -> Waits:
        """A window of several calls is as many threads, of which each waits for one."""
        rank, home = self.ranks[r], self.ids[r]
        calls = [rank.program[i] for i in rank.inflight.values()]
        if rank.may_submit() or any(op.kind == Kind.JOIN for op in calls):
            return Waits(1)
        every = [(home[key[0]], key[1], position) for key, position in rank.inflight.items()]
        own = [ThreadWait(100 * r + position, number, name, name) for number, name, position in every]
        return Waits(1, own, [(number, name) for number, name, _ in every])

    def observe(self) -> None:
        """Let a rank say something, or a word arrive, or the detector look."""
        self.let(self.rng.randrange(len(self.ranks)), self.rng.choice(["say", "arrive", "look"]))

    def hear_all(self) -> None:
        """Let all ranks say what they wait for, and all that was said arrive."""
        for r in range(len(self.ranks)):
            self.let(r, "say")
            while self.words[r]:
                self.let(r, "arrive")
            self.let(r, "look")

    def let(self, r: int, how: str) -> None:
        """Let rank ``r`` do one thing."""
        if how == "say":
            self.words[r].append(self.waits(r))
        elif how == "arrive" and self.words[r]:
            word = self.words[r].pop(0)
            if isinstance(word, Waits):
                self.detector.add_waits(r, word, 0.0)
            else:
                self.words[r].append(msgspec.structs.replace(self.waits(r), question=word))
        elif how == "look" and not self.verdict:
            step = self.detector.look(0.0)
            if isinstance(step, DeadlockCheck):
                for rank in step.ranks:
                    self.words[rank].append(step.question)
            elif isinstance(step, Deadlock):
                self.verdict = step.reason
                self.doomed = {(r, i) for r in step.ranks for i in self.ranks[r].inflight.values()}


@settings(max_examples=4 * settings().max_examples)
@given(jobs(), st.sampled_from([0.1, 0.5, 0.9]))
def test_no_program_that_would_go_on_is_ended(job: Job, share: float) -> None:
    for seed in job.seeds:
        simulation = Observed(job, random.Random(seed))
        moves = True
        while moves:
            if simulation.rng.random() < share:
                simulation.observe()
            else:
                moves = simulation.step()
        outcomes = simulation.finish()
        assert simulation.doomed.isdisjoint(outcomes), simulation.verdict
        if len(outcomes) == sum(map(len, job.programs)):
            assert not simulation.verdict


@settings(max_examples=4 * settings().max_examples)
@given(st.integers(0, 2**32))
def test_who_is_behind_waits_for_nobody_who_is_ahead(seed: int) -> None:
    """One name again and again: a rank whose order is on its way does not wait for what the fastest is ready for."""
    rng = random.Random(seed)
    sets = {"all": (0, 1, 2), "pair": (0, 1)}
    calls = [Op(uid, Kind.ALLREDUCE, "a" if where == "all" else "b", where) for uid, where in enumerate(_MIXED)]
    programs = [[call for call in calls if rank in sets[call.where]] for rank in range(3)]
    simulation = Observed(Job(programs, sets, ["pair"], 0, 1, 0, 0, []), rng)
    behind = rng.randrange(2)
    moves = True
    while moves:
        if rng.random() < 0.8:
            simulation.observe()
        elif rng.random() < 0.9:  # the one behind hears late
            held, simulation.inbox[behind] = simulation.inbox[behind], []
            simulation.step()
            simulation.inbox[behind][:0] = held
        else:
            moves = simulation.step()
    assert not simulation.verdict


@settings(max_examples=4 * settings().max_examples)
@given(jobs())
def test_ranks_that_all_wait_are_found(job: Job) -> None:
    simulation = Observed(job, random.Random(job.seeds[0]))
    while simulation.step():
        pass
    is_stuck = all(simulation.waits(r).waits for r in range(len(simulation.ranks)))
    for _ in range(20 * len(simulation.ranks)):
        simulation.observe()
    for _ in range(3):  # until it asks, until all have answered, and to look once more
        simulation.hear_all()
    assert bool(simulation.verdict) or not is_stuck
    if is_stuck:
        assert not simulation.negotiation.undecided


# -- lanes that the controller hears nothing of -----------------------------------------------------------------------


def _planned(token: int, lane: str, sequence: int, **reached: int) -> Waits:
    every = [(0, other, n) for other, n in {**reached, lane: sequence}.items()]
    return Waits(1, [ThreadWait(token, 0, f"{lane}: step {sequence}", lane=lane, sequence=sequence)], [], every)


def _given(token: int, grant: int, sequence: int, **given: int) -> Waits:
    every = [(int(number[1:]), n) for number, n in {f"g{grant}": sequence, **given}.items()]
    return Waits(1, [ThreadWait(token, 0, f"grant {grant}", grant=grant, sequence=sequence)], given=every)


def _named(token: int, name: str, *submitted: str) -> Waits:
    own = [(0, each) for each in (name, *submitted)]
    return Waits(1, [ThreadWait(token, 0, name, name)], own)


def _verdict(*said: Waits, pending: dict[str, tuple[list[int], list[int]]] | None = None) -> str:
    """What the detector says if all ranks say the same again; "" for nothing."""
    ready = {(0, name): (RankSet.of(came), RankSet.of(not_)) for name, (came, not_) in (pending or {}).items()}
    size = len(said)
    detector = DeadlockDetector(["a"] * size, ProcessGroups(size), lambda key: ready.get(key, (NOBODY, NOBODY)))
    for rank, each in enumerate(said):
        detector.add_waits(rank, each, 0.0)
    asked = detector.look(0.2)
    if asked is None:
        return ""
    assert isinstance(asked, DeadlockCheck)
    for rank in asked.ranks:
        detector.add_waits(rank, msgspec.structs.replace(said[rank], question=asked.question), 0.2)
    found = detector.look(0.2)
    return found.reason if isinstance(found, Deadlock) else ""


def test_planned_lanes_in_another_order() -> None:
    found = _verdict(_planned(1, "p", 3, q=2), _planned(1, "q", 3, p=2))
    assert "wait: rank 0 on a in p: step 3, for rank 1 on a; rank 1 on a in q: step 3, for rank 0 on a." in found


def test_a_step_more_on_one_rank() -> None:
    assert _verdict(_planned(1, "p", 3), _named(1, "loss"), pending={"loss": ([1], [0])})
    assert not _verdict(_planned(1, "p", 3), _planned(1, "p", 3))


def test_a_rank_that_has_been_there_is_not_waited_for() -> None:
    assert not _verdict(_planned(1, "p", 3), _planned(1, "q", 1, p=3))
    assert not _verdict(_named(1, "a"), _named(1, "b", "a"), pending={"a": ([0], [1]), "b": ([1], [0])})


def test_an_order_on_its_way_is_waited_for() -> None:
    assert not _verdict(_planned(1, "p", 3), _named(1, "loss"))
    later = {"loss": ([2], [0, 1])}
    assert not _verdict(_planned(1, "p", 3), _named(1, "loss"), Waits(1), pending=later), "rank 2 is a step ahead"


def test_rounds_of_the_peer_lane() -> None:
    assert _verdict(_given(1, 7, 3, g8=2), _given(1, 8, 3, g7=2))
    assert not _verdict(_given(1, 7, 3, g8=2), _given(1, 8, 3, g7=3)), "given, and on its way"
    assert not _verdict(_given(1, 7, 3, g8=2), _given(1, 8, 3)), "withdrawn, and on its way: the controller is asked"


def test_a_rank_that_may_still_come_is_waited_for() -> None:
    assert not _verdict(_planned(1, "p", 3), Waits(1))
    both = Waits(1, [*_planned(1, "q", 2).waits, *_planned(2, "r", 1).waits], [], [(0, "q", 2), (0, "r", 1)])
    assert not _verdict(_planned(1, "p", 3, q=2), both, Waits(1)), "rank 2 comes to q, and rank 1 goes on"


@pytest.mark.parametrize("tokens", [(1, 2), (2, 1)])
def test_one_that_has_moved_in_between_is_no_part_of_it(tokens: tuple[int, int]) -> None:
    detector = DeadlockDetector(["a"] * 2, ProcessGroups(2), lambda _: (NOBODY, NOBODY))
    detector.add_waits(0, _planned(1, "p", 3), 0.0)
    detector.add_waits(1, _planned(1, "q", 3), 0.0)
    asked = detector.look(0.2)
    assert isinstance(asked, DeadlockCheck)
    for rank, (token, lane) in enumerate(zip(tokens, "pq", strict=True)):
        answer = msgspec.structs.replace(_planned(token, lane, 3), question=asked.question)
        detector.add_waits(rank, answer, 0.3)
    assert detector.look(0.3) is None


def test_answers_to_an_earlier_question_do_not_count() -> None:
    detector = DeadlockDetector(["a"] * 2, ProcessGroups(2), lambda _: (NOBODY, NOBODY))
    said = [_planned(1, "p", 3), _planned(1, "q", 3)]
    for rank in (0, 1):
        detector.add_waits(rank, said[rank], 0.0)
    first = detector.look(0.2)
    again = detector.look(99.0)
    assert isinstance(first, DeadlockCheck)
    assert isinstance(again, DeadlockCheck)
    for rank in (0, 1):
        detector.add_waits(rank, msgspec.structs.replace(said[rank], question=first.question), 99.0)
    assert detector.look(99.5) is None


def test_one_that_goes_on_takes_the_others_along() -> None:
    """Rank 2 came to a, for which rank 0 waited: rank 0 may wait for the next a by now, and come to b afterwards."""
    ready: dict[tuple[int, str], tuple[list[int], list[int]]] = {
        (0, "a"): ([0], [1, 2]),
        (0, "b"): ([1], [0]),
        (0, "c"): ([2], [0, 1]),  # not the one of which rank 2 spoke
    }
    detector = DeadlockDetector(["a"] * 3, ProcessGroups(3), lambda key: tuple(map(RankSet.of, ready[key])))  # type: ignore[arg-type,return-value]
    said = [_named(1, "a"), _named(1, "b", "a"), _named(1, "c")]
    for rank in range(3):
        detector.add_waits(rank, said[rank], 0.0)
    asked = detector.look(0.2)
    assert isinstance(asked, DeadlockCheck)
    assert asked.ranks == (0, 1, 2)
    detector.add_waits(0, msgspec.structs.replace(said[0], question=asked.question), 0.2)
    ready[0, "a"] = [0], [1, 2]  # the next one
    detector.add_waits(2, Waits(1, question=asked.question), 0.2)
    said[1] = _named(1, "b")
    detector.add_waits(1, msgspec.structs.replace(said[1], question=asked.question), 0.2)
    assert isinstance(detector.look(0.2), DeadlockCheck), "rank 0 is asked again"
