"""Generations of an elastic job, formed as its membership decides; without any I/O.

    formation = ElasticFormation(Membership(Policy.of(settings)), engine, time.monotonic)
    formation.report_event(HostsFound({"a": 2, "b": 2}))
    controller = Controller(send, settings, ANY, time.monotonic, formation)
    while formation.orders:                     # after each of the controller's turns
        obey(formation.orders.popleft())        # Start, Kill, Finish

The controller reports events of workers and carries out decisions about them; the launcher carries out ``orders``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from farandole import events
from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.messages import Hello
from farandole.elastic.membership import actions, job_events
from farandole.elastic.membership.journal import Recorded
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.workers import WorkerPhase, name
from farandole.errors import FarandoleError
from farandole.runtime.coordination.formation import (
    Choose,
    Decision,
    Deferred,
    Due,
    EndNow,
    Formation,
    Formed,
    Member,
    Refused,
    WaitInInit,
    disagreement,
)
from farandole.runtime.coordination.rank_names import list_some


@final
class ElasticFormation(Formation):
    """Adapter between the controller, which knows sockets and ranks, and the membership, which knows worker ids."""

    def __init__(self, membership: Membership | Recorded, choose: Choose, clock: Callable[[], float]) -> None:
        super().__init__()
        self.orders: deque[actions.Decision] = deque()
        """Decisions for the loop that starts and kills workers and ends the job; the controller gets all others."""
        self.on_decision: Callable[[actions.Decision], object] = lambda _: None
        """Callback for every decision, those for the loop and those for the controller."""
        self.on_generation_ended: Callable[[GenerationEnded], object] = lambda _: None
        """Callback for the end of a generation that the controller reports."""
        self.claim: Callable[[actions.Form], object] | None = None
        """Callback for a new generation, which is then held back until ``claimed`` is called with its number."""
        self._unclaimed = 0
        self._membership, self._choose, self._clock = membership, choose, clock
        self._known: dict[int, Member] = {}  # by worker id, with its latest ``Hello``
        self._seniors = {
            worker_id for worker_id, worker in membership.workers.items() if worker.senior
        }  # worker ids that have been members
        self._formed: tuple[Member, ...] = ()
        self._due: deque[Decision] = deque()
        self._is_news = False
        self._handlers: dict[type, Callable[[Any, str], None]] = {
            actions.Form: self._form,
            actions.Greet: self._greet,
            actions.RefuseWorkers: self._refuse,
            actions.Dismiss: self._dismiss,
            actions.Announce: lambda _, reason: self._due.append(Due(reason)),
            actions.AbortGeneration: lambda _, reason: self._due.append(EndNow(reason)),
        }

    @property
    def membership(self) -> Membership | Recorded:
        """The state machine that decides, for reading only."""
        return self._membership

    def report_event(self, event: job_events.JobEvent) -> None:
        """Pass an event to the membership that the controller does not know of."""
        self._membership.on(self._clock(), event)
        self._is_news = True

    # -- called by the controller -------------------------------------------------------------------------------------

    def started(self, worker_id: int, description: str) -> None:
        """See ``Formation``."""
        self.report_event(job_events.WorkerStarted(worker_id))

    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """See ``Formation``."""
        taken = self.registry.objection(hello)
        if taken:
            self._due.append(Refused((Member(uid, hello),), taken))
        return taken

    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """See ``Formation``."""
        member = Member(uid, hello)
        self.registry.enter(uid, hello)
        reference = self._formed or tuple(self._known.values())
        is_new = hello.worker_id not in self._seniors
        misfit = disagreement((reference[0], member)) if reference and is_new else ""
        self._known[hello.worker_id] = member
        if hello.step_s > 0:
            self.longest_step(hello.worker_id, hello.step_s)
        self._membership.on(now, job_events.WorkerConnected(hello.worker_id, hello.ready, hello.state_step))
        if misfit:
            self.report_event(job_events.WorkerUnfit(hello.worker_id, misfit))
        self._is_news = True

    def worker_exited(self, event: WorkerExited) -> None:
        """See ``Formation``."""
        self.registry.free_worker_id(event.worker_id)
        self._known.pop(event.worker_id, None)
        self._seniors.discard(event.worker_id)
        # Without the worker's last output lines: no decision depends on them, and they would fill the journal.
        self.report_event(WorkerExited(event.worker_id, event.code, event.description))

    def left(self, worker_id: int, ending: bool, told: bool) -> None:
        """See ``Formation``."""
        self.registry.free_worker_id(worker_id)
        self.report_event(job_events.WorkerLeft(worker_id, ending, told))

    def answered(self, worker_id: int) -> None:
        """See ``Formation``."""
        self.report_event(job_events.Answered(worker_id))

    def generation_ended(self, event: GenerationEnded) -> None:
        """See ``Formation``."""
        self.on_generation_ended(event)
        self.report_event(event)

    def longest_step(self, worker_id: int, step_s: float) -> None:
        """See ``Formation``."""
        self.report_event(job_events.LongestStep(step_s, worker_id))

    def stalled(self, worker_ids: Collection[int], reason: str) -> bool:
        """See ``Formation``."""
        for worker_id in worker_ids:
            self.report_event(job_events.WorkerHung(worker_id, reason))
        return bool(worker_ids)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def waits(self) -> WaitInInit | None:
        """See ``Formation``; new workers that wait while a generation trains do not count."""
        workers = self._membership.workers.values()
        here = [each for each in workers if each.phase is WorkerPhase.READY and each.worker_id in self._known]
        if not self._membership.over or not here:
            return None
        missing = [f"{each} ({each.phase.value})" for each in workers if each.phase is not WorkerPhase.READY]
        since_s = min(each.since_s for each in here)
        members = self._members([each.worker_id for each in here])
        whom = list_some(missing, "; ") or "workers that are not started yet"
        return WaitInInit(since_s, members, name(here), whom)

    @property
    def deadline_s(self) -> float | None:
        """See ``Formation``."""
        if self._is_held:
            return None
        return 0.0 if self._is_news or self._due else self._membership.deadline_s

    @property
    def _is_held(self) -> bool:
        """True while the next decision begins a generation that is not claimed yet."""
        return bool(self._unclaimed and self._due) and isinstance(self._due[0], Formed)

    def claimed(self, generation: int) -> None:
        """Release the generation that ``claim`` held back."""
        if generation == self._unclaimed:
            self._unclaimed = 0

    def decide(self, now: float) -> Decision | None:
        """See ``Formation``."""
        is_over = False
        while not self._due and not is_over:
            self._is_news = False
            for decision in self._membership.decide(now):
                self._apply_decision(decision)
            is_over = not self._is_news
        return self._due.popleft() if self._due and not self._is_held else None

    def _apply_decision(self, decision: actions.Decision) -> None:
        events.logger.debug("decided: %s (%s)", decision.action, decision.reason)
        self.on_decision(decision)
        handler = self._handlers.get(type(decision.action))
        if handler is None:
            self.orders.append(decision)
        else:
            handler(decision.action, decision.reason)

    def _form(self, action: actions.Form, _: str) -> None:
        if strangers := self._strangers(action.worker_ids):
            self._undo(action, strangers)
            return
        try:
            engine, reason = self._choice(action.worker_ids)
        except FarandoleError as failure:
            new = [worker_id for worker_id in action.worker_ids if worker_id not in self._seniors]
            self._undo(
                action, dict.fromkeys(new if len(new) < len(action.worker_ids) else action.worker_ids, str(failure))
            )
            return
        self._formed = self._members(action.worker_ids)
        self._seniors.update(action.worker_ids)
        if self.claim is not None:
            self._unclaimed = action.generation
            self.claim(action)
        self._due.append(Formed(action.generation, self._formed, engine, reason))

    def _choice(self, worker_ids: Collection[int]) -> tuple[str, str]:
        """Engine for a generation of these workers, from those that are known, and the reason for this engine."""
        hellos = [member.hello for member in self._members(worker_ids)]
        return self._choose([hello.host for hello in hellos], [_that_form_again(hello.engines) for hello in hellos])

    def _strangers(self, worker_ids: Sequence[int]) -> dict[int, str]:
        """New workers that do not fit the oldest one, with reasons; it may have described its state only just now."""
        oldest = self._known[worker_ids[0]]
        new = {
            worker_id: disagreement((oldest, self._known[worker_id]))
            for worker_id in worker_ids
            if worker_id not in self._seniors
        }
        return {worker_id: misfit for worker_id, misfit in new.items() if misfit}

    def _undo(self, action: actions.Form, unfit: Mapping[int, str]) -> None:
        """Undo a ``Form`` that ``unfit`` workers (reasons by worker id) make impossible; other workers still wait."""
        self.report_event(GenerationEnded(action.generation, next(iter(unfit.values()))))
        for worker_id in action.worker_ids:
            if worker_id in unfit:
                self.report_event(job_events.WorkerUnfit(worker_id, unfit[worker_id]))
            else:
                self.report_event(
                    job_events.WorkerConnected(worker_id, ready=True, step=self._known[worker_id].hello.state_step)
                )

    def _greet(self, action: actions.Greet, reason: str) -> None:
        rank = action.worker_ids.index(action.worker_id)
        where = {worker_id: worker.slot.host for worker_id, worker in self._membership.workers.items()}
        where |= {
            worker_id: member.hello.host for worker_id, member in self._known.items()
        }  # lacks workers of a previous controller
        hosts = tuple(where[worker_id] for worker_id in action.worker_ids)
        try:
            engine = self._choice(action.worker_ids)[0]
        except FarandoleError:
            engine = "solo"  # ``_form`` reports the failure when the worker is ready
        self._due.append(Deferred((self._known[action.worker_id],), rank, hosts, engine, reason))

    def _refuse(self, action: actions.RefuseWorkers, reason: str) -> None:
        self._due.append(Refused(self._members(action.worker_ids), reason))

    def _dismiss(self, action: actions.Dismiss, reason: str) -> None:
        self._due.append(Refused(self._members(action.worker_ids), reason, orderly=True))

    def _members(self, worker_ids: Collection[int]) -> tuple[Member, ...]:
        return tuple(self._known[worker_id] for worker_id in worker_ids if worker_id in self._known)


def _that_form_again(engines: list[str]) -> list[str]:
    """The ``engines`` without MPI: MPI processes end together, and no other process can join them."""
    return [engine for engine in engines if engine != "mpi"]
