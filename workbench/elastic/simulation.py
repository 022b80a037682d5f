"""Random schedules of elastic jobs in virtual time: ``python -m workbench.elastic.simulation SEED [COUNT]``.

    >>> told = simulate(seed=7)
    >>> told.faults, told == simulate(seed=7)
    ([], True)

A seed decides everything: the hosts, the limits, the faults and plans and their times, and the duration of each message
and step. Nothing takes as long as a time-out, unless it is meant to.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

from farandole.control.exits import HostLost
from farandole.elastic.membership import job_events
from farandole.elastic.membership.actions import Decision
from farandole.elastic.membership.journal import Recorded, replay
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from workbench.elastic import invariants
from workbench.elastic.job import do
from workbench.elastic.worker import At
from workbench.elastic.world import JobMove, JobSetup, JobWorld, Rules

MESSAGE_S, LATE_S = (0.001, 0.05), (0.5, 1.5)
"""Range of the delays of most messages, and of the few that are late."""

LATE = 0.02
"""Share of the messages that are late."""

MOVES_S = {
    At.IMPORTING: (0.5, 3.0),
    At.BUILDING: (1.0, 5.0),
    At.AGREEING: (0.001, 0.02),
    At.RECEIVING: (0.01, 0.3),
    At.COMPUTING: (0.05, 0.3),
    At.VOTING: (0.0005, 0.005),
}
SILENCE_S = 3.0
"""Time of silence after which a host counts as lost."""

RECOVERY_S = 15.0
"""Longest time between steps, for each fault or plan near them: a hang (5 s of patience) or a silent host (3 s), then
another one of these, because the next fault may occur in between, and a few late messages."""

ELASTIC_TIMEOUT_S, HORIZON_S = 100.0, 600.0
"""Time that a job waits for workers, and time by which it must be over; if every member hangs it waits for ever."""

JOURNALS = 50
"""One seed in so many has a journal: it is replayed, and a new controller gets nothing but the journal."""

LIFE_TURNS = 20
"""Number of turns for which a controller lives in these jobs."""

RIGHT = Rules()


@final
class JobStory(NamedTuple):
    """Story of a simulated job.

    ``disruptions`` counts faults and plans; ``longest_s`` is the longest time between two steps near a single one of
    them; ``faults`` are broken promises.
    """

    seed: int
    status: int | None
    generations: int
    steps: int
    disruptions: int
    longest_s: float
    faults: list[str]


@final
class LiveMembership:
    """A ``SimulatedController`` with one membership, which changes in place: earlier states are not kept.

    An ``heir``, if there is one, takes the membership over now and then, without visible effect.
    """

    def __init__(self, membership: Membership | Recorded, heir: Callable[[], Recorded] | None = None) -> None:
        self._membership, self._heir = membership, heir
        self._turns = 0
        self.deadline_s: float | None = None

    def anew(self) -> LiveMembership:
        """See ``SimulatedController``; not supported, because the journal would belong to another leader."""
        raise NotImplementedError

    def turn(self, now: float, event: job_events.JobEvent | None) -> tuple[LiveMembership, list[Decision]]:
        """See ``Membership``."""
        self._turns += 1
        if self._heir is not None and self._turns % LIFE_TURNS == 0:
            self._membership = self._heir()
        if event is not None:
            self._membership.on(now, event)
        decisions = self._membership.decide(now)
        self.deadline_s = self._membership.deadline_s
        return self, decisions


def draw_setup(chance: random.Random) -> JobSetup:
    """Draw a job of up to six slots, and its possible faults and plans."""
    hosts = {name: chance.randint(1, 2) for name in "abc"[: chance.randint(1, 3)]}
    policy = Policy(
        min_np=chance.choice((1, 1, 2)),
        max_np=chance.choice((0, 0, 3)),
        elastic_timeout_s=ELASTIC_TIMEOUT_S,
        cooldown_range_s=(0.0, 20.0),
        reset_limit=chance.choice((0, 0, 0, 5)),
    )
    kinds = ("kill", "kill", "hang", "notice", "fail", "fail in apply", "lose host", "cut host")
    budget = {kind: chance.randint(0, 1) for kind in kinds if chance.random() < 0.6}
    if chance.random() < 0.2:
        budget["kill"] = 5
    plans = [dict(hosts)]
    for _ in range(chance.choice((0, 0, 1, 2, 3))):
        name = chance.choice("abcd")
        plans.append({**plans[-1], name: chance.randint(1, 3)})
        if chance.random() < 0.5 and len(plans[-1]) > 1:
            del plans[-1][chance.choice(sorted(plans[-1]))]
    is_fixed = chance.random() < 0.5
    batch = chance.randint(1, 4)
    samples = batch * chance.randint(5, 25) + chance.randint(0, batch - 1)
    return JobSetup(hosts, policy, samples, batch, is_fixed, tuple(budget.items()), tuple(plans[1:]), in_detail=True)


@final
class RandomSchedule:
    """A world with a clock. ``chance`` draws when possible events happen."""

    def __init__(self, world: JobWorld, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self._due_s: dict[JobMove, float] = {}
        count = sum(world.budget.values()) + len(world.setup.plans)
        self._fault_events_s = sorted((chance.uniform(0.0, 7.0) for _ in range(count)), reverse=True)
        self._last_step_s: float | None = None
        self._disrupted_s: list[float] = []
        self.steps, self.longest_s, self.disruptions = 0, 0.0, 0

    def run(self) -> None:
        """Go on until the job is over, nothing more can happen, or an invariant is broken."""
        world = self._world
        while world.status is None and not world.faults and self._go_on():
            if world.now > HORIZON_S:
                break
        if world.status is None and not world.is_suspended:
            world.faults.append("the job goes on for ever, or stops without an end")

    def _go_on(self) -> bool:
        world = self._world
        enabled = world.enabled()
        self._due_s = {action: self._due_s.get(action) or world.now + self._takes_s(action) for action in enabled}
        following = min(self._due_s, key=self._due_s.__getitem__, default=None)
        next_s = self._due_s[following] if following is not None else None
        deadline_s = world.controller.deadline_s
        moments = [moment for moment in (next_s, deadline_s, *self._fault_events_s[-1:]) if moment is not None]
        if not moments:
            return False
        now = min(moments)
        world.now = max(world.now, now)
        if self._fault_events_s and now == self._fault_events_s[-1]:
            self._fault_events_s.pop()
            self._disrupt()
        elif following is not None and now == next_s:
            del self._due_s[following]
            self._do(following)
        else:
            do(world, JobMove("tick"))
        return True

    def _do(self, action: JobMove) -> None:
        before = self._world.workers.get(int(action.who)) if action.kind == "move" else None
        do(self._world, action)
        after = self._world.workers[before.worker_id] if before is not None else None
        if before is not None and after is not None and before.at == At.VOTING and (after.step > before.step):
            self._note_step()

    def _disrupt(self) -> None:
        fault_events = self._world.fault_events()
        if not fault_events:
            return
        kinds = sorted({action.kind for action in fault_events})
        kind = self._chance.choice(kinds)
        do(self._world, self._chance.choice([action for action in fault_events if action.kind == kind]))
        self._disrupted_s.append(self._world.now)
        self.disruptions += 1

    def _takes_s(self, action: JobMove) -> float:
        chance, kind = self._chance, action.kind
        if kind == "move":
            return chance.uniform(*MOVES_S[self._world.workers[int(action.who)].at])
        if kind == "inspect":
            return self._world.setup.policy.patience_s(0.0) or 0.0
        if kind == "report host" and isinstance(self._world.host_news[0], HostLost):
            return SILENCE_S
        return chance.uniform(*(LATE_S if chance.random() < LATE else MESSAGE_S))

    def _note_step(self) -> None:
        now, world = self._world.now, self._world
        self.steps += 1
        if self._last_step_s is not None:
            gap_s = now - self._last_step_s
            recent = [moment for moment in self._disrupted_s if moment >= self._last_step_s - RECOVERY_S]
            if len(recent) == 1 and world.setup.policy.min_np == 1:
                self.longest_s = max(self.longest_s, gap_s)
            if gap_s > RECOVERY_S * (len(recent) or 0.2) and world.setup.policy.min_np == 1:
                world.faults.append(f"P2: {gap_s:.1f} s without a step, at {now:.1f} s; disrupted at {recent}")
        self._last_step_s = now


def simulate(seed: int, rules: Rules = RIGHT) -> JobStory:
    """Simulate one job to its end."""
    chance = random.Random(seed)  # noqa: S311 (it is to be the same again)
    setup = replace(draw_setup(chance), rules=rules)
    lines: list[str] = []
    is_recorded = seed % JOURNALS == 0
    membership = Recorded(setup.policy, lines.append) if is_recorded else Membership(setup.policy)
    heir = partial(Recorded, setup.policy, lines.append, lines) if is_recorded else None
    world = JobWorld(setup, LiveMembership(membership, heir), invariants)
    schedule = RandomSchedule(world, chance)
    schedule.run()
    if is_recorded:
        replay(lines)
    return JobStory(
        seed, world.status, world.generation, schedule.steps, schedule.disruptions, schedule.longest_s, world.faults
    )


def main(arguments: Sequence[str]) -> int:
    """Simulate the jobs of these seeds; 1 if one has broken a promise."""
    first, count = [*map(int, arguments), 1][:2]
    told = [simulate(seed) for seed in range(first, first + count)]
    broken = [each for each in told if each.faults]
    for each in broken:
        print(f"seed {each.seed}: {each.faults[0]}")
    print(
        f"{count:,} schedules: {sum(each.disruptions for each in told):,} faults and plans, "
        f"{sum(each.generations for each in told):,} generations, {sum(each.steps for each in told):,} steps, "
        f"{sum(each.status == 0 for each in told):,} jobs ended well; "
        f"longest time between two steps around one fault or plan: {max(each.longest_s for each in told):.1f} s"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
