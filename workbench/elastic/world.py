"""A modelled job: the real membership, workers that follow the protocol, and all messages under way.

    world = JobWorld(setup, controller, invariants)
    for action in world.enabled(): ...
    do(world, action)                                   # one atomic step of one of its parts (job.py)
    world.faults                                        # what is broken that must hold; empty, it is hoped

The driver chooses the order: ``search`` tries all orders, ``simulation`` has a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, final

from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.elastic.membership import job_events, vote
from farandole.elastic.membership.actions import (
    AbortGeneration,
    Announce,
    Decision,
    Dismiss,
    Finish,
    Form,
    Greet,
    Kill,
    RefuseWorkers,
    Rest,
    Start,
)
from farandole.elastic.membership.policy import Policy
from farandole.elastic.worker.sampler import GlobalBatch, fixed, per_rank
from workbench.elastic.worker import IN_GENERATION, At, Content, Life, Point, Simulated


class SimulatedController(Protocol):
    """Controller of the model. ``turn`` may return another object: a search keeps all of them."""

    deadline_s: float | None
    """See ``Membership``."""

    def turn(self, now: float, event: job_events.JobEvent | None) -> tuple[SimulatedController, list[Decision]]:
        """Process an event, and decide."""

    def anew(self) -> SimulatedController:
        """Controller of a new leader, without any knowledge."""


@final
@dataclass(frozen=True)
class Rules:
    """Rules of the protocol that a bug could break; the defaults are right, and the product's."""

    count: Callable[[Sequence[vote.Vote]], vote.VoteOutcome] = vote.count
    agree: Callable[[Sequence[vote.VoteClaim]], vote.Agreement] = vote.agree
    needs_all_parts: bool = True
    moves_cursor: bool = True
    hands_over_cursor: bool = True
    owns_up: bool = True
    """A worker whose state was changing when its generation ended reports that it has none."""


@final
@dataclass(frozen=True)
class JobSetup:
    """Setup of a job, with its possible faults and plans. ``fixed_batch``: ``batch`` is for all ranks together."""

    hosts: dict[str, int]
    policy: Policy
    samples: int = 4
    batch: int = 2
    fixed_batch: bool = True
    budget: tuple[tuple[str, int], ...] = ()
    plans: tuple[dict[str, int], ...] = ()
    rules: Rules = field(default_factory=Rules)
    in_detail: bool = False
    """True to distinguish stages without effect on decisions: a worker's start and its ``init``, a step's begin and its
    vote. A search does not need them; a simulation has a clock, which does."""


class JobMove(NamedTuple):
    """One possible next event: its kind, and the worker or host."""

    kind: str
    who: int | str = -1


Word: TypeAlias = tuple[str, int, tuple[int, ...]]
"""Message of the controller to a worker: its kind, generation, worker ids."""


class Invariants(Protocol):
    """Checks of decisions, which add to the ``faults`` of the world; the module ``invariants`` has them."""

    def check_formed(self, world: JobWorld, worker_ids: Sequence[int]) -> None:
        """Check a generation that is formed."""

    def check_spared(self, world: JobWorld, decision: Decision, worker_ids: Sequence[int]) -> None:
        """Check a decision that tells workers to end."""

    def check_end(self, world: JobWorld, decision: Decision) -> None:
        """Check the end of the job."""


@final
class JobWorld:
    """State of a simulated job. Values in it are immutable, so that a copy of it is shallow."""

    def __init__(self, setup: JobSetup, controller: SimulatedController, invariants: Invariants) -> None:
        self.setup = setup
        self.invariants = invariants
        self.now = 0.0
        self.controller = controller
        self.workers: dict[int, Simulated] = {}
        self.up: dict[int, tuple[job_events.JobEvent, ...]] = {}  # messages of workers to the controller
        self.news: dict[
            int, tuple[job_events.JobEvent, ...]
        ] = {}  # reports of agents, which may overtake `up` or be overtaken
        self.down: dict[int, tuple[Word, ...]] = {}
        self.met: dict[Point, tuple[tuple[int, object], ...]] = {}
        self.host_news: tuple[job_events.JobEvent, ...] = ()
        self.gone: frozenset[str] = frozenset()  # hosts that were lost and are not back
        self.budget = dict(setup.budget)
        self.planned = 0
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self.best = 0  # the highest step that any worker has reached
        self.status: int | None = None
        self.faults: list[str] = []
        self.turn(job_events.HostsFound(setup.hosts))

    @property
    def is_hurried(self) -> bool:
        """True if a time-out expired while the awaited message was still under way."""
        return self.budget.get("hurry", 0) != dict(self.setup.budget).get("hurry", 0)

    @property
    def is_suspended(self) -> bool:
        """True if all members hang: no member can miss another, as in a job that users have stopped."""
        lives = [self.workers[worker_id].life for worker_id in self.members]
        return Life.HUNG in lives and not {Life.UP, Life.CUT_OFF}.intersection(lives)

    def copy(self) -> JobWorld:
        """A copy, which can develop differently."""
        other = object.__new__(JobWorld)
        other.__dict__.update(self.__dict__)
        for name in ("workers", "up", "news", "down", "met", "budget"):
            setattr(other, name, dict(getattr(self, name)))
        other.faults = list(self.faults)
        return other

    # -- what can happen ----------------------------------------------------------------------------------------------

    def enabled(self) -> list[JobMove]:
        """Everything that can happen next, except faults, plans and the passing of time."""
        if self.status is not None:
            return []
        actions = [JobMove("hear", worker_id) for worker_id, queue in self.up.items() if queue]
        actions += [JobMove("report", worker_id) for worker_id, queue in self.news.items() if queue]
        if self.host_news:
            actions.append(JobMove("report host"))
        for worker_id, worker in self.workers.items():
            if worker.life == Life.UP and self.down.get(worker_id):
                actions.append(JobMove("obey", worker_id))
            if worker.life in (Life.UP, Life.CUT_OFF) and self._can_move(worker):
                actions.append(JobMove("move", worker_id))
            if worker.life == Life.HUNG and self._is_missed(worker):
                actions.append(JobMove("inspect", worker_id))
        return actions

    def fault_events(self) -> list[JobMove]:
        """The faults and plans that may still happen now."""
        if self.status is not None:
            return []
        up = [worker_id for worker_id, worker in self.workers.items() if worker.life == Life.UP]
        actions: list[JobMove] = []
        for kind, left in self.budget.items():
            if left and kind == "hurry":
                actions += [JobMove(kind)] * (self.controller.deadline_s is not None)
            elif left and kind in ("lose host", "cut host"):
                hosts = {self.workers[worker_id].host for worker_id in up}
                actions += [JobMove(kind, host) for host in sorted(hosts)]
            elif left and kind == "lose lead":
                actions += [JobMove(kind, host) for host in sorted(self._hosts_of_lead())]
            elif left and kind in ("fail", "fail in apply", "raise"):
                actions += [
                    JobMove(kind, worker_id) for worker_id in up if self._can_fail(self.workers[worker_id], kind)
                ]
            elif left and kind == "notice":
                waiting = [worker_id for worker_id in up if self.workers[worker_id].at == At.INIT]
                actions += [JobMove(kind, worker_id) for worker_id in waiting]
            elif left:
                actions += [JobMove(kind, worker_id) for worker_id in up]
        if self.planned < len(self.setup.plans):
            actions.append(JobMove("plan"))
        return actions

    def _hosts_of_lead(self) -> set[str]:
        """Hosts with members that may be the leader's: a member on another host must be able to continue the job."""
        members = [self.workers[worker_id] for worker_id in self.members if self.workers[worker_id].life == Life.UP]
        able = {each.host for each in members if vote.goes_on_from(each.claim.step, each.joined) > vote.NEW}
        return {each.host for each in members if able - {each.host}}

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
        """The meeting at which a worker waits, or which it is about to reach."""
        if worker.at == At.AGREEING:
            return worker.generation, "claim", 0
        if worker.at == At.RECEIVING:
            return worker.generation, "state", 0
        return worker.generation, "vote", worker.step

    def is_complete(self, worker: Simulated) -> bool:
        """True if all members that a worker waits for have arrived."""
        came = {worker_id for worker_id, _ in self.met.get(self.point(worker), ())}
        if worker.at == At.RECEIVING:
            return came.issuperset(worker.sources)
        if worker.at == At.VOTING and not self.setup.rules.needs_all_parts:
            return True
        return len(came) == len(worker.members)

    def _is_left_alone(self, worker: Simulated) -> bool:
        """True if it waits for a worker that has left its generation; the closed connection shows that."""
        came = {worker_id for worker_id, _ in self.met.get(self.point(worker), ())}
        missing = set(worker.sources if worker.at == At.RECEIVING else worker.members) - came
        return any(self._has_left(worker_id, worker.generation) for worker_id in missing)

    def _has_left(self, worker_id: int, generation: int) -> bool:
        other = self.workers[worker_id]
        if other.life == Life.ENDED or other.generation > generation:
            return True
        return other.generation == generation and other.at not in IN_GENERATION

    def _is_missed(self, worker: Simulated) -> bool:
        """True if others of the generation wait for a worker that does not arrive."""
        if worker.worker_id not in self.members or self._has_left(worker.worker_id, self.generation):
            return False
        others = [self.workers[worker_id] for worker_id in self.members if worker_id != worker.worker_id]
        waiting = [each for each in others if each.life == Life.UP and each.generation == self.generation]
        return any(each.at in IN_GENERATION and not self._came(worker, each) for each in waiting)

    def _came(self, worker: Simulated, other: Simulated) -> bool:
        return worker.worker_id in {worker_id for worker_id, _ in self.met.get(self.point(other), ())}

    # -- the controller -----------------------------------------------------------------------------------------------

    def turn(self, event: job_events.JobEvent | None) -> None:
        """Let the controller process an event or the passing of time; its decisions are then under way."""
        if self.status is not None:
            return
        self.controller, decisions = self.controller.turn(self.now, event)
        if isinstance(event, GenerationEnded) and event.generation == self.generation:
            self._tell_members("abort")
        for decision in decisions:
            self._obey(decision)

    def _obey(self, decision: Decision) -> None:
        action = decision.action
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Form):
            self.invariants.check_formed(self, action.worker_ids)
            self.generation, self.members = action.generation, tuple(action.worker_ids)
            for worker_id in action.worker_ids:
                self.tell(worker_id, ("form", action.generation, tuple(action.worker_ids)))
        elif isinstance(action, AbortGeneration | Announce):
            self._tell_members("abort" if isinstance(action, AbortGeneration) else "announce")
        elif isinstance(action, Greet):
            self.tell(action.worker_id, ("greet", 0, tuple(action.worker_ids)))
        elif isinstance(action, RefuseWorkers | Dismiss):
            self.invariants.check_spared(self, decision, action.worker_ids)
            for worker_id in action.worker_ids:
                self.tell(worker_id, ("refuse" if isinstance(action, RefuseWorkers) else "dismiss", 0, ()))
        elif isinstance(action, Kill):
            self.invariants.check_spared(self, decision, [action.worker_id])
            self.tell(action.worker_id, ("kill", 0, ()))
        elif isinstance(action, Finish):
            self.invariants.check_end(self, decision)
            self.status = action.status
        else:
            assert isinstance(action, Rest)

    def _start(self, action: Start) -> None:
        self.workers[action.worker_id] = Simulated(action.worker_id, action.host, Content(action.worker_id))
        if action.host in self.gone:
            self.end(action.worker_id, 1)
        elif self.setup.in_detail:
            self.say_of(action.worker_id, job_events.WorkerStarted(action.worker_id))

    def _tell_members(self, word: str) -> None:
        for worker_id in self.members:
            self.tell(worker_id, (word, self.generation, ()))

    def tell(self, worker_id: int, word: Word) -> None:
        """Send a message to a worker, unless none can reach it any more."""
        worker = self.workers.get(worker_id)
        if worker is None or worker.life in (Life.ENDED, Life.CUT_OFF):
            return
        if word[0] == "kill":
            self.end(worker_id, -9)  # by its agent, which no worker can block
        else:
            self.down[worker_id] = (*self.down.get(worker_id, ()), word)

    def say(self, worker_id: int, event: job_events.JobEvent) -> None:
        """Send an event from a worker to the controller."""
        if self.workers[worker_id].life == Life.UP:
            self.up[worker_id] = (*self.up.get(worker_id, ()), event)

    def say_of(self, worker_id: int, event: job_events.JobEvent) -> None:
        """Send an event from a worker's agent to the controller."""
        if self.workers[worker_id].life != Life.CUT_OFF:
            self.news[worker_id] = (*self.news.get(worker_id, ()), event)

    def end(self, worker_id: int, code: int) -> None:
        """End a process; its agent reports that, before or after the process's own messages."""
        self.say_of(worker_id, WorkerExited(worker_id, code, f"worker {worker_id} ended with {code}"))
        self.workers[worker_id] = Simulated(worker_id, self.workers[worker_id].host, Content(0), Life.ENDED)
        self.down.pop(worker_id, None)

    def batch(self, worker: Simulated) -> GlobalBatch | None:
        """The global batch of a worker's next step; ``None`` at the end of the data."""
        cut = fixed if self.setup.fixed_batch else per_rank
        sizes = (self.setup.batch,) if self.setup.fixed_batch else (len(worker.members), self.setup.batch)
        return next(cut(worker.content.cursor, self.setup.samples, *sizes), None)

    def come_to(self, worker: Simulated, said: object) -> None:
        """Add a worker's part to the meeting where it is."""
        point = self.point(worker)
        self.met[point] = (*self.met.get(point, ()), (worker.worker_id, said))

    def said_at(self, worker: Simulated) -> list[object]:
        """Parts of all members at the meeting where a worker is, by rank."""
        said = dict(self.met.get(self.point(worker), ()))
        return [said[worker_id] for worker_id in worker.members if worker_id in said]

    def take(self, kind: str, who: int | str) -> None:
        """Let the controller process an event that is under way, or detect that a worker hangs."""
        if kind == "report host":
            event, *rest = self.host_news
            self.host_news = tuple(rest)
        elif kind == "inspect":
            event = job_events.WorkerHung(int(who), f"worker {who} hangs")
        else:
            queues = self.up if kind == "hear" else self.news
            event, *rest = queues[int(who)]
            queues[int(who)] = tuple(rest)
        self.turn(event)

    def pass_time(self) -> None:
        """Advance to the controller's deadline."""
        deadline_s = self.controller.deadline_s
        assert deadline_s is not None
        assert deadline_s >= self.now, "the controller waits for a moment that has passed"
        self.now = deadline_s
        self.turn(None)
        assert self.controller.deadline_s != self.now, "the controller was woken for nothing"

    def forget(self) -> None:
        """Drop meetings that no worker will reach any more: two worlds that differ in nothing else are the same."""
        live = [worker for worker in self.workers.values() if worker.life != Life.ENDED and worker.at in IN_GENERATION]
        first: dict[int, int] = {}
        for worker in live:
            first[worker.generation] = min(worker.step, first.get(worker.generation, worker.step))
        self.met = {
            point: said
            for point, said in self.met.items()
            if point[0] in first and (point[1] != "vote" or point[2] >= first[point[0]])
        }
