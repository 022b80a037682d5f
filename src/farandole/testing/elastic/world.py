"""A job of the model: the real membership, workers that follow the protocol, and everything that is under way.

    world = World(setup, controller, invariants)
    for action in world.enabled(): ...
    do(world, action)                                   # one atomic step of one of its parts (job.py)
    world.faults                                        # what is broken that must hold; empty, it is hoped

Who drives it chooses the order: ``search`` tries all, ``simulation`` has a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, final

from farandole.elastic.membership import happenings, vote
from farandole.elastic.membership.decisions import (
    Abort,
    Announce,
    Decision,
    Dismiss,
    Finish,
    Form,
    Greet,
    Kill,
    Refuse,
    Rest,
    Start,
)
from farandole.elastic.membership.policy import Policy
from farandole.elastic.worker.sampler import GlobalBatch, fixed, per_rank
from farandole.testing.elastic.worker import IN_GENERATION, At, Content, Life, Point, Simulated


class Controller(Protocol):
    """What decides. Those that ``turn`` may be others than before: a search keeps all of them."""

    deadline_s: float | None
    """See ``Membership``."""

    def turn(self, now: float, event: happenings.Any | None) -> tuple[Controller, list[Decision]]:
        """Take an event in, and decide."""


@final
@dataclass(frozen=True)
class Rules:
    """The protocol where it can be got wrong; the defaults are right, and the product's."""

    count: Callable[[Sequence[vote.Part]], vote.Outcome] = vote.count
    agree: Callable[[Sequence[vote.Claim]], vote.Agreement] = vote.agree
    needs_all_parts: bool = True
    moves_cursor: bool = True
    hands_over_cursor: bool = True
    owns_up: bool = True
    """A worker whose state was being changed when its generation ended says that it has none."""


@final
@dataclass(frozen=True)
class Setup:
    """What job, and what may happen to it. ``fixed_batch``: ``batch`` samples are those of all ranks together."""

    hosts: dict[str, int]
    policy: Policy
    samples: int = 4
    batch: int = 2
    fixed_batch: bool = True
    budget: tuple[tuple[str, int], ...] = ()
    plans: tuple[dict[str, int], ...] = ()
    rules: Rules = field(default_factory=Rules)
    in_detail: bool = False
    """Whether things are told apart that make no difference: a worker's start and its ``init``, a step's begin and its
    vote. A search does without; a simulation has a clock, for which they do."""


class Action(NamedTuple):
    """One thing that can happen next: its kind, and to whom."""

    kind: str
    who: int | str = -1


Word: TypeAlias = tuple[str, int, tuple[int, ...]]
"""The controller to a worker: what, generation, places."""


class Invariants(Protocol):
    """Checks of decisions, which add to the ``faults`` of the world; ``invariants`` has them."""

    def check_formed(self, world: World, places: Sequence[int]) -> None:
        """Of a generation that is formed."""

    def check_spared(self, world: World, decision: Decision, places: Sequence[int]) -> None:
        """Of workers that are told to end."""

    def check_end(self, world: World, decision: Decision) -> None:
        """Of the end of the job."""


@final
class World:
    """State of a simulated job. Values in it are immutable, so that a copy of it is shallow."""

    def __init__(self, setup: Setup, controller: Controller, invariants: Invariants) -> None:
        self.setup = setup
        self.invariants = invariants
        self.now = 0.0
        self.controller = controller
        self.workers: dict[int, Simulated] = {}
        self.up: dict[int, tuple[happenings.Any, ...]] = {}  # workers' own words to the controller
        self.news: dict[int, tuple[happenings.Any, ...]] = {}  # what is reported of them
        self.down: dict[int, tuple[Word, ...]] = {}
        self.met: dict[Point, tuple[tuple[int, object], ...]] = {}
        self.host_news: tuple[happenings.Any, ...] = ()
        self.gone: frozenset[str] = frozenset()  # hosts that were lost and are not back
        self.budget = dict(setup.budget)
        self.planned = 0
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self.best = 0  # the highest step that any worker has ever been at
        self.status: int | None = None
        self.faults: list[str] = []
        self.turn(happenings.Found(setup.hosts))

    @property
    def is_hurried(self) -> bool:
        """Whether a time-out came while what it waits for was still on its way."""
        return self.budget.get("hurry", 0) != dict(self.setup.budget).get("hurry", 0)

    @property
    def is_suspended(self) -> bool:
        """Whether all members hang: nobody is left there who could miss them, as in a job that people have stopped."""
        lives = [self.workers[place].life for place in self.members]
        return Life.HUNG in lives and not {Life.UP, Life.CUT_OFF}.intersection(lives)

    def copy(self) -> World:
        """Another one that can go another way."""
        other = object.__new__(World)
        other.__dict__.update(self.__dict__)
        for name in ("workers", "up", "news", "down", "met", "budget"):
            setattr(other, name, dict(getattr(self, name)))
        other.faults = list(self.faults)
        return other

    # -- what can happen ----------------------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """Everything that can happen next, apart from faults, plans and the passing of time."""
        if self.status is not None:
            return []
        actions = [Action("hear", place) for place, queue in self.up.items() if queue]
        actions += [Action("report", place) for place, queue in self.news.items() if queue]
        if self.host_news:
            actions.append(Action("report host"))
        for place, worker in self.workers.items():
            if worker.life == Life.UP and self.down.get(place):
                actions.append(Action("obey", place))
            if worker.life in (Life.UP, Life.CUT_OFF) and self._can_move(worker):
                actions.append(Action("move", place))
            if worker.life == Life.HUNG and self._is_missed(worker):
                actions.append(Action("inspect", place))
        return actions

    def mishaps(self) -> list[Action]:
        """The faults and plans that may still happen now."""
        if self.status is not None:
            return []
        up = [place for place, worker in self.workers.items() if worker.life == Life.UP]
        actions: list[Action] = []
        for kind, left in self.budget.items():
            if left and kind == "hurry":
                actions += [Action(kind)] * (self.controller.deadline_s is not None)
            elif left and kind in ("lose host", "cut host"):
                hosts = {self.workers[place].host for place in up}
                actions += [Action(kind, host) for host in sorted(hosts)]
            elif left and kind in ("fail", "fail in apply", "raise"):
                actions += [Action(kind, place) for place in up if self._can_fail(self.workers[place], kind)]
            elif left:
                actions += [Action(kind, place) for place in up]
        if self.planned < len(self.setup.plans):
            actions.append(Action("plan"))
        return actions

    def _can_move(self, worker: Simulated) -> bool:
        if worker.at in (At.IMPORTING, At.BUILDING):
            return worker.life == Life.UP
        if worker.at == At.COMPUTING:
            return True
        return worker.at in IN_GENERATION and (self.is_complete(worker) or self._is_left_alone(worker))

    def _can_fail(self, worker: Simulated, kind: str) -> bool:
        if kind == "fail in apply":
            return worker.at == At.VOTING and self.is_complete(worker)
        return worker.at in IN_GENERATION

    def point(self, worker: Simulated) -> Point:
        """What a worker waits for, or is about to come to."""
        if worker.at == At.AGREEING:
            return worker.generation, "claim", 0
        if worker.at == At.RECEIVING:
            return worker.generation, "state", 0
        return worker.generation, "vote", worker.step

    def is_complete(self, worker: Simulated) -> bool:
        """Whether all have come that a worker waits for."""
        came = {place for place, _ in self.met.get(self.point(worker), ())}
        if worker.at == At.RECEIVING:
            return came.issuperset(worker.sources)
        if worker.at == At.VOTING and not self.setup.rules.needs_all_parts:
            return True
        return len(came) == len(worker.members)

    def _is_left_alone(self, worker: Simulated) -> bool:
        """It waits for one who has left its generation; the connection between them says so."""
        came = {place for place, _ in self.met.get(self.point(worker), ())}
        missing = set(worker.sources if worker.at == At.RECEIVING else worker.members) - came
        return any(self._has_left(place, worker.generation) for place in missing)

    def _has_left(self, place: int, generation: int) -> bool:
        other = self.workers[place]
        if other.life == Life.ENDED or other.generation > generation:
            return True
        return other.generation == generation and other.at not in IN_GENERATION

    def _is_missed(self, worker: Simulated) -> bool:
        """Others of the generation wait for it, and it does not come."""
        if worker.place not in self.members or self._has_left(worker.place, self.generation):
            return False
        others = [self.workers[place] for place in self.members if place != worker.place]
        waiting = [each for each in others if each.life == Life.UP and each.generation == self.generation]
        return any(each.at in IN_GENERATION and not self._came(worker, each) for each in waiting)

    def _came(self, worker: Simulated, other: Simulated) -> bool:
        return worker.place in {place for place, _ in self.met.get(self.point(other), ())}

    # -- the controller -----------------------------------------------------------------------------------------------

    def turn(self, event: happenings.Any | None) -> None:
        """The controller takes something in, or finds that it is time; its decisions are on their way."""
        if self.status is not None:
            return
        self.controller, decisions = self.controller.turn(self.now, event)
        if isinstance(event, happenings.Over) and event.generation == self.generation:
            self._tell_members("abort")
        for decision in decisions:
            self._obey(decision)

    def _obey(self, decision: Decision) -> None:
        action = decision.action
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Form):
            self.invariants.check_formed(self, action.places)
            self.generation, self.members = action.generation, tuple(action.places)
            for place in action.places:
                self.tell(place, ("form", action.generation, tuple(action.places)))
        elif isinstance(action, Abort | Announce):
            self._tell_members("abort" if isinstance(action, Abort) else "announce")
        elif isinstance(action, Greet):
            self.tell(action.place, ("greet", 0, tuple(action.places)))
        elif isinstance(action, Refuse | Dismiss):
            self.invariants.check_spared(self, decision, action.places)
            for place in action.places:
                self.tell(place, ("refuse" if isinstance(action, Refuse) else "dismiss", 0, ()))
        elif isinstance(action, Kill):
            self.invariants.check_spared(self, decision, [action.place])
            self.tell(action.place, ("kill", 0, ()))
        elif isinstance(action, Finish):
            self.invariants.check_end(self, decision)
            self.status = action.status
        else:
            assert isinstance(action, Rest)

    def _start(self, action: Start) -> None:
        self.workers[action.place] = Simulated(action.place, action.host, Content(action.place))
        if action.host in self.gone:
            self.end(action.place, 1)
        elif self.setup.in_detail:
            self.say_of(action.place, happenings.Started(action.place))

    def _tell_members(self, word: str) -> None:
        for place in self.members:
            self.tell(place, (word, self.generation, ()))

    def tell(self, place: int, word: Word) -> None:
        """Something is on its way to a worker."""
        worker = self.workers.get(place)
        if worker is None or worker.life in (Life.ENDED, Life.CUT_OFF):
            return
        if word[0] == "kill":
            self.end(place, -9)  # by its agent, which no worker can hold up
        else:
            self.down[place] = (*self.down.get(place, ()), word)

    def say(self, place: int, event: happenings.Any) -> None:
        """Something is on its way from a worker."""
        if self.workers[place].life == Life.UP:
            self.up[place] = (*self.up.get(place, ()), event)

    def say_of(self, place: int, event: happenings.Any) -> None:
        """Something is on its way from a worker's agent."""
        if self.workers[place].life != Life.CUT_OFF:
            self.news[place] = (*self.news.get(place, ()), event)

    def end(self, place: int, code: int) -> None:
        """A process is over; its agent will say so, before or after what it said itself."""
        self.say_of(place, happenings.Ended(place, code, f"worker {place} ended with {code}"))
        self.workers[place] = Simulated(place, self.workers[place].host, Content(0), Life.ENDED)
        self.down.pop(place, None)

    def batch(self, worker: Simulated) -> GlobalBatch | None:
        """What a worker's next step takes; ``None`` at the end of the data."""
        cut = fixed if self.setup.fixed_batch else per_rank
        sizes = (self.setup.batch,) if self.setup.fixed_batch else (len(worker.members), self.setup.batch)
        return next(cut(worker.content.cursor, self.setup.samples, *sizes), None)

    def come_to(self, worker: Simulated, said: object) -> None:
        """A worker has its part at the point of the data plane where it is."""
        point = self.point(worker)
        self.met[point] = (*self.met.get(point, ()), (worker.place, said))

    def said_at(self, worker: Simulated) -> list[object]:
        """What all members have said where it is, by rank."""
        said = dict(self.met.get(self.point(worker), ()))
        return [said[place] for place in worker.members if place in said]

    def take(self, kind: str, who: int | str) -> None:
        """The controller takes in what is on its way to it, or finds that it is time."""
        if kind == "report host":
            event, *rest = self.host_news
            self.host_news = tuple(rest)
        elif kind == "inspect":
            event = happenings.Hung(int(who), f"worker {who} hangs")
        else:
            queues = self.up if kind == "hear" else self.news
            event, *rest = queues[int(who)]
            queues[int(who)] = tuple(rest)
        self.turn(event)

    def pass_time(self) -> None:
        """It is the moment for which the controller waits."""
        deadline_s = self.controller.deadline_s
        assert deadline_s is not None
        assert deadline_s >= self.now, "the controller waits for a moment that has passed"
        self.now = deadline_s
        self.turn(None)
        assert self.controller.deadline_s != self.now, "the controller was woken for nothing"

    def forget(self) -> None:
        """What nobody will ask for any more: two worlds that differ in nothing else are one."""
        live = [worker for worker in self.workers.values() if worker.life != Life.ENDED and worker.at in IN_GENERATION]
        first: dict[int, int] = {}
        for worker in live:
            first[worker.generation] = min(worker.step, first.get(worker.generation, worker.step))
        self.met = {
            point: said
            for point, said in self.met.items()
            if point[0] in first and (point[1] != "vote" or point[2] >= first[point[0]])
        }
