"""Membership of an elastic job: a state machine from events to actions, without any I/O.

    membership = Membership(Policy(min_np=2))
    membership.on(now, HostsFound({"a": 2, "b": 2}))    # as often as something happens: job_events.py has all events
    for decision in membership.decide(now):             # once everything that has arrived is in
        log(decision.reason)
        obey(decision.action)                           # actions.py says what each means
    sleep(until=membership.deadline_s)                  # None: only an event can bring news

The calling loop carries out the actions in order and passes on events as it gets them: an event may arrive late, twice
or from a worker that was given up, and is then ignored. ``WorkerStarted`` or ``WorkerExited`` follows each ``Start``,
and ``WorkerExited`` or ``HostLost`` follows each ``Kill`` in the end. The loop reports ``GenerationEnded`` for a
generation that it ends itself, because an engine failed, and for a generation that could not be formed as decided.
The stall inspector reports ``WorkerHung``.

docs/design/elasticity.md explains the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import final

from farandole.elastic.membership import job_events
from farandole.elastic.membership.actions import Announce, Decision, Dismiss, Finish, Form, Start
from farandole.elastic.membership.job_state import LOST, JobState
from farandole.elastic.membership.policy import Policy
from farandole.elastic.membership.workers import Worker, WorkerPhase, name


@final
class Membership:
    """Rules of one job, applied to its state. ``status``: exit status of the job after ``Finish``, ``None`` before.

    Worker ids count from ``first_worker_id``, for several memberships that share one socket.
    """

    def __init__(self, policy: Policy, first_worker_id: int = 0) -> None:
        self.status: int | None = None
        self._policy = policy
        self._job = JobState(policy, first_worker_id)
        self._decided_s = -math.inf
        self._announced = False
        self._wish_since_s: float | None = None
        self._short_since_s: float | None = None

    @property
    def generation(self) -> int:
        """The number of the latest generation; 0 before the first."""
        return self._job.generation

    @property
    def members(self) -> tuple[int, ...]:
        """Worker ids of the latest generation, by rank."""
        return self._job.members

    @property
    def next_worker_id(self) -> int:
        """Id of the worker that is started next."""
        return self._job.next_worker_id

    @property
    def workers(self) -> Mapping[int, Worker]:
        """Workers whose end is not known, by worker id, for reading only."""
        return self._job.workers

    @property
    def slots(self) -> Mapping[str, int]:
        """Number of slots of each host that the job may use."""
        return self._job.slots.by_host

    @property
    def over(self) -> str:
        """Reason why the latest generation has ended; empty while it runs."""
        return self._job.over

    @property
    def step_s(self) -> float:
        """Duration of the longest recent step of any worker, in seconds."""
        return self._job.step_s

    def on(self, now: float, event: job_events.JobEvent) -> None:
        """Apply an event."""
        self._job.on(now, event)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Decision]:
        """All decisions that are due. Without a new event there is none before ``deadline_s``."""
        self._decided_s = now
        decisions: list[Decision] = []
        while self.status is None and (decision := self._next(now)) is not None:
            decisions.append(decision)
            if isinstance(decision.action, Finish):
                self.status = decision.action.status
        return decisions

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``decide`` is due without an event; ``None``: only an event can bring news."""
        if self.status is not None:
            return None
        moments = (moment for moment in self._moments() if moment is not None and moment > self._decided_s)
        return min(moments, default=None)

    def _moments(self) -> Iterable[float | None]:
        for worker in self._job.workers.values():
            yield self._overdue_s(worker)
        if self._job.over and self._job.in_phase(WorkerPhase.LEFT):
            yield self._job.patience_ends_s
        yield from map(self._job.hangs_at_s, self._job.in_phase(WorkerPhase.MEMBER))
        if self._wish_since_s is not None:
            yield self._wish_since_s + self._policy.window_s
        if self._short_since_s is not None:
            yield self._short_since_s + self._policy.elastic_timeout_s
        if self._may_start():
            yield self._job.slots.next_free_s

    def _next(self, now: float) -> Decision | None:
        if self._job.answers:
            return self._job.answers.pop(0)
        rules = (self._finish, self._give_up, self._dismiss, self._form, self._start, self._announce)
        return next((decision for rule in rules if (decision := rule(now)) is not None), None)

    def _finish(self, now: float) -> Decision | None:
        """End the job if all its workers have finished, or if it cannot go on."""
        status, failure = self._job.status()
        seniors = [worker for worker in self._job.in_order() if worker.senior]
        if self.generation and not any(worker.holds or worker.phase is not WorkerPhase.READY for worker in seniors):
            if self._job.adopting and not self._job.finished:
                self._job.begin_anew(now)
                return self._job.answers.pop(0) if self._job.answers else None
            if not failure and not seniors:
                return Decision(Finish(0), "every worker has finished")
            why = f"{failure or self._job.over}, and no worker is left that has the state of the job"
            return Decision(Finish(status or LOST), why)
        if not self.generation and not self._job.workers:
            if self._job.finished:
                return Decision(Finish(status), failure or "every worker has finished, and none called init()")
            if self._job.slots.all_excluded:
                return Decision(Finish(status or LOST), f"no worker could be started: {failure}")
        return self._run_out(now)

    def _run_out(self, now: float) -> Decision | None:
        """End the job once it has waited for workers long enough."""
        ready = len(self._job.in_phase(WorkerPhase.READY))
        if self.generation:
            is_early = bool(self._job.in_order()) and not ready
        else:  # a worker started after a failure does not restart the wait
            is_early = bool(self._job.awaited(now)) and not self._job.status()[1]
        if self._job.is_running or is_early or len(self._job.chosen()) >= self._job.needed:
            self._short_since_s = None
            return None
        if self._short_since_s is None:
            self._short_since_s = now
        found = f"{ready} ready, and the job needs {self._job.needed} (--min-np)"
        if (
            self._job.finished
            and not self._job.awaited(now)
            and not self._job.in_phase(WorkerPhase.LEFT, WorkerPhase.LEAVING, WorkerPhase.ENDING)
        ):
            return Decision(Finish(LOST), f"{found}; none is started any more once one has finished")
        if now >= self._short_since_s + self._policy.elastic_timeout_s:
            waited = f"for {self._policy.elastic_timeout_s:g} s (--elastic-timeout)"
            return Decision(Finish(self._job.status()[0] or LOST), f"{found}; no others have come {waited}")
        return None

    def _overdue_s(self, worker: Worker) -> float | None:
        """Time at which a worker is killed if it is still in its phase; ``None``: the phase has no limit."""
        if worker.phase in (WorkerPhase.STARTING, WorkerPhase.ENDING, WorkerPhase.DISMISSED):
            return worker.since_s + self._policy.start_timeout_s
        return worker.since_s + self._policy.elastic_timeout_s if worker.phase is WorkerPhase.GREETED else None

    def _give_up(self, now: float) -> Decision | None:
        """Kill a worker that is overdue, hangs, or can no longer join."""
        for worker in self._job.workers.values():
            overdue_s, ends_s = self._overdue_s(worker), self._job.hangs_at_s(worker)
            is_new = worker.phase in (WorkerPhase.STARTING, WorkerPhase.GREETED)
            if is_new and not self._job.may_stay(worker):
                self._job.doom(worker, now, f"{worker.slot} is there no more", to_blame=False)
            elif is_new and self.generation and self._job.finished:
                self._job.doom(worker, now, "no worker joins any more once one has finished", to_blame=False)
            elif overdue_s is not None and now >= overdue_s:
                waited_s = overdue_s - worker.since_s
                reason = f"{worker} was given up after {waited_s:g} s: {worker.phase.value}"
                self._job.doom(worker, now, reason, worker.to_blame)
            elif worker.phase is WorkerPhase.MEMBER and ends_s is not None and now >= ends_s:
                self._job.doom(worker, now, f"{worker} hangs: {self._job.why_hung(ends_s)}")
            else:
                continue
            return self._job.answers.pop(0)
        return None

    def _dismiss(self, now: float) -> Decision | None:
        """Dismiss the workers that are ready and will not be members."""
        if self._job.is_running:
            wanted = self._job.joiners() if not self._job.finished else []
        elif not self._job.awaited(now):
            wanted = self._job.chosen()
        else:
            return None
        surplus = [worker for worker in self._job.in_phase(WorkerPhase.READY) if worker not in wanted]
        if not surplus or (not wanted and not self._job.is_running):
            return None
        for worker in surplus:
            worker.enter(WorkerPhase.DISMISSED, now)
            worker.to_blame = False
        return Decision(
            Dismiss([worker.worker_id for worker in surplus]), f"{name(surplus)}: there is no slot for it now"
        )

    def _form(self, now: float) -> Decision | None:
        """Form the next generation when all awaited workers are ready."""
        chosen = self._job.chosen()
        if self._job.is_running or self._job.awaited(now) or len(chosen) < self._job.needed:
            return None
        if self._policy.reset_limit and self.generation > self._policy.reset_limit:
            limit = f"the workers have re-formed {self._policy.reset_limit} times (--reset-limit)"
            return Decision(Finish(self._job.status()[0] or LOST), f"{limit}; then {self._job.over}")
        new = [worker for worker in chosen if not worker.senior]
        reason = f"{name(chosen)}" + (f"; new: {name(new)}" if self.generation and new else "")
        self._job.begin(chosen, now)
        self._announced, self._short_since_s = False, None
        return Decision(Form(self.generation, list(self.members)), f"generation {self.generation}: {reason}")

    def _announce(self, now: float) -> Decision | None:
        """Announce joins and leaves when no other worker is about to join, or after ``window_s``."""
        members = self._job.in_phase(WorkerPhase.MEMBER)
        leaving = [worker for worker in members if not self._job.may_stay(worker)]
        joiners = self._job.joiners()
        if not self._job.is_running or self._announced or not (joiners or (leaving and len(leaving) < len(members))):
            self._wish_since_s = None
            return None
        if self._wish_since_s is None:
            self._wish_since_s = now
        if (
            self._job.in_phase(WorkerPhase.STARTING, WorkerPhase.GREETED)
            and now < self._wish_since_s + self._policy.window_s
        ):
            return None
        self._announced, self._wish_since_s = True, None
        wishes = [f"{name(joiners)} can join"] * bool(joiners) + [f"{name(leaving)} must go"] * bool(leaving)
        return Decision(Announce(), "; ".join(wishes))

    def _may_start(self) -> bool:
        staying = sum(self._job.may_stay(worker) for worker in self._job.in_order())
        if self._job.awaits_hosts:
            return False
        return not self._job.finished and not (self._policy.max_np and staying >= self._policy.max_np)

    def _start(self, now: float) -> Decision | None:
        """Start a worker in the next free slot."""
        slot = self._job.slots.free(now) if self._may_start() else None
        if slot is None:
            return None
        worker = self._job.hire(slot, now)
        return Decision(Start(worker.worker_id, slot.host, slot.index), f"{slot} is free")
