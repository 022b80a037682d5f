"""Random schedules of jobs of the model: ``python -m workbench.peers.simulation SEED [COUNT]``.

    >>> simulate(seed=7).fault, simulate(seed=7) == simulate(seed=7)
    ('', True)

A seed decides everything: the number of ranks, their programs, the faults, and the order of all events.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, final

from workbench.peers import invariants
from workbench.peers.book import LiveMachines
from workbench.peers.program import BIG, GIVE, JOIN, REFUSE, WAIT, Program, ProgramStep
from workbench.peers.world import PeerMove, PeerSetup, PeerWorld

MOST_STEPS = 20_000


@final
class PeerStory(NamedTuple):
    """Result of a simulated job. ``outcomes`` counts the ends of its collectives; ``fault`` is a broken promise."""

    seed: int
    steps: int
    outcomes: tuple[tuple[str, int], ...]
    fault: str


@final
class _Author:
    """Generator of the ranks' programs: blocks of collectives, in each rank's own order, and mistakes.

    Between two joins every rank runs the same blocks, except ranks that join early.
    """

    def __init__(self, chance: random.Random, size: int, sets: Sequence[Sequence[int]]) -> None:
        self._chance, self._size, self._sets = chance, size, sets
        self.programs: list[list[ProgramStep]] = [[] for _ in range(size)]
        self._names = "abcde"[: chance.randint(1, 5)]
        self._fault_event = chance.choice((0.0, 0.0, 0.05, 0.2))

    def write(self) -> None:
        """Write all programs."""
        epochs = self._chance.choice((1, 1, 2, 3))
        for epoch in range(epochs):
            blocks = self._chance.randint(1, 6)
            joins = epoch + 1 < epochs or self._chance.random() < 0.3
            last = [self._chance.randint(0, blocks) if joins else blocks for _ in range(self._size)]
            if max(last) < blocks:
                last[self._chance.randrange(self._size)] = blocks
            for block in range(blocks):
                self._write_block([rank for rank in range(self._size) if block < last[rank]])
            for program in self.programs if joins else ():
                program.append(ProgramStep(JOIN))

    def _write_block(self, there: Sequence[int]) -> None:
        chance = self._chance
        own: dict[int, list[ProgramStep]] = {rank: [] for rank in there}
        for name in chance.sample(self._names, chance.randint(1, len(self._names))):
            process_set = chance.randrange(len(self._sets) + 1) if chance.random() < 0.3 else 0
            kind = BIG if chance.random() < 0.15 else GIVE
            shape = 1 if chance.random() < 0.9 or kind == BIG else 2
            step = ProgramStep(kind, name if kind == GIVE else name.upper(), shape, process_set, process_set)
            members = self._sets[process_set - 1] if process_set else range(self._size)
            for rank in set(members).intersection(there):
                own[rank].append(self._mistake(step) if chance.random() < self._fault_event else step)
        for rank, steps in own.items():
            chance.shuffle(steps)
            self.programs[rank] += steps
            if chance.random() < 0.4:
                self.programs[rank].append(ProgramStep(WAIT))

    def _mistake(self, step: ProgramStep) -> ProgramStep:
        if self._chance.random() < 0.5:
            return step._replace(kind=REFUSE)
        return step._replace(shape=3) if step.kind == GIVE else step


def draw_setup(chance: random.Random) -> PeerSetup:
    """Draw a job of two to five ranks."""
    size = chance.choice((2, 2, 3, 3, 4, 5))
    sets = [tuple(sorted(chance.sample(range(size), chance.randint(1, size - 1)))) for _ in range(chance.randint(0, 2))]
    sets = list(dict.fromkeys(sets))
    programs: list[tuple[Program, ...]] = []
    for _ in range(2):
        author = _Author(chance, size, sets)
        author.write()
        programs.append(tuple(map(tuple, author.programs)))
    return PeerSetup(
        programs[0],
        sets=tuple(sets),
        capacity=chance.choice((1, 2, 1024, 1024)),
        fusion_bytes=chance.choice((0, 2**20)),
        kills=int(chance.random() < 0.2),
        again=programs[1] if chance.random() < 0.5 else (),
    )


def simulate(seed: int) -> PeerStory:
    """Simulate one job to its end."""
    chance = random.Random(seed)  # noqa: S311 (it is to be the same again)
    setup = draw_setup(chance)
    weights = {kind: chance.choice((0.1, 1.0, 1.0, 5.0)) for kind in ("up", "hear", "obey", "act", "offer", "take")}
    weights["kill"] = 0.01
    world, steps, fault = PeerWorld(setup, LiveMachines()), 0, ""
    try:
        while (actions := world.enabled()) and steps < MOST_STEPS:
            steps += 1
            world.do(_choose(actions, weights, chance))
    except (AssertionError, KeyError) as error:
        fault = f"{type(error).__name__}: {error}"
    fault = fault or invariants.fault(world)
    ends = Counter(
        "done" if str(outcome).startswith("[") else str(outcome)
        for machine in world.ranks
        for *_, outcome in machine.view.outcomes
    )
    return PeerStory(seed, steps, tuple(sorted(ends.items())), fault)


def _choose(actions: Sequence[PeerMove], weights: dict[str, float], chance: random.Random) -> PeerMove:
    """Draw the next action; the weights make some kinds early or late throughout a job."""
    return chance.choices(actions, [weights.get(action.kind, 1.0) for action in actions])[0]


def main(arguments: Sequence[str]) -> int:
    """Simulate the jobs that the arguments name; 1 if one is broken."""
    first, count = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 1
    ends: Counter[str] = Counter()
    steps, broken = 0, 0
    for seed in range(first, first + count):
        told = simulate(seed)
        steps += told.steps
        ends.update(dict(told.outcomes))
        if told.fault:
            broken += 1
            print(f"seed {seed}: {told.fault}", flush=True)
    each = ", ".join(f"{number:,} {end}" for end, number in sorted(ends.items()))
    print(f"{count:,} schedules of {steps:,} steps: {each}; {broken} broken")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
