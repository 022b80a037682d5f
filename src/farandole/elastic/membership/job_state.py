"""State of an elastic job: the phase of each worker, and whether the latest generation still runs.

``JobState`` applies events and makes decisions that are due at once; the rules in ``membership`` make all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

from farandole.control.exits import GenerationEnded, HostLost, WorkerExited
from farandole.control.process import exit_status
from farandole.elastic.membership import job_events
from farandole.elastic.membership.actions import AbortGeneration, AnyAction, Decision, Greet, Kill, RefuseWorkers
from farandole.elastic.membership.policy import Policy
from farandole.elastic.membership.slots import HostSlot, Slots
from farandole.elastic.membership.vote import NEW
from farandole.elastic.membership.workers import Worker, WorkerPhase
from farandole.runtime.coordination.stall import LATELY_S, STEPS_OF_PATIENCE

GONE = (WorkerPhase.DISMISSED, WorkerPhase.DOOMED)
"""Phases of processes that are no longer workers of the job."""

BETWEEN = (WorkerPhase.GREETED, WorkerPhase.READY, WorkerPhase.LEFT)
"""Phases of workers that are in no generation and may join the next one."""

LOST = 1
"""Exit status that counts for a worker whose host was lost."""


@final
class JobState:
    """Workers, slots and generation of one job. ``over``: why the latest generation has ended; empty while it runs.

    ``answers``: decisions that are due at once. ``patience_from_s``: time since which other workers wait for those
    that have not noticed that the generation is over. ``failures``: exit status and description of each member of the
    latest generation that failed, by worker id.
    """

    def __init__(self, policy: Policy, first_worker_id: int = 0) -> None:
        self.policy = policy
        self.slots = Slots(policy)
        self.workers: dict[int, Worker] = {}
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self.over = ""
        self.patience_from_s: float | None = None
        self.failures: dict[int, tuple[int, str]] = {}
        self.finished: set[int] = set()
        self.answers: list[Decision] = []
        self.next_worker_id = first_worker_id
        self.adopting = False
        """True until the first generation is formed with workers of the previous leader."""
        self.awaits_hosts = False
        """True until this leader has found its hosts: hosts of the previous leader do not count."""
        self._seniority: list[int] = []  # workers that have been members, the oldest first
        self._steps: dict[int, tuple[float, float]] = {}  # by worker id, its last report: time, and duration of a step

    # -- events -------------------------------------------------------------------------------------------------------

    def on(self, now: float, event: job_events.JobEvent) -> None:
        """Apply an event."""
        self._HANDLERS[type(event)](self, now, event)

    def _on_found(self, now: float, event: job_events.HostsFound) -> None:
        self.slots.found(event.hosts)
        if self.awaits_hosts and self.patience_from_s is not None:
            self.patience_from_s = now  # before, some hosts had neither connected nor been lost
        self.awaits_hosts = False

    def _on_started(self, now: float, event: job_events.WorkerStarted) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is not None and worker.phase is WorkerPhase.STARTING:
            worker.since_s = now

    def _on_came(self, now: float, event: job_events.WorkerConnected) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is None or worker.phase in GONE:
            self._answer(
                RefuseWorkers([event.worker_id]), f"worker {event.worker_id} is none of this job, or was given up"
            )
            return
        if worker.phase is WorkerPhase.MEMBER:
            self._remove_member(worker, now)
        worker.step = event.step
        if self.over and worker.senior and self.patience_from_s is None:
            self.patience_from_s = now
        if event.ready or not self.generation or worker.senior:
            worker.enter(WorkerPhase.READY, now)
            return
        worker.enter(WorkerPhase.GREETED, now)
        others = [each for each in self.in_order() if each is not worker and self.may_stay(each)]
        worker_ids = [each.worker_id for each in others if each.phase is not WorkerPhase.STARTING] + [worker.worker_id]
        self._answer(Greet(worker.worker_id, worker_ids), f"{worker} may build its model while the others train")

    def _on_left(self, now: float, event: job_events.WorkerLeft) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is not None and worker.phase is WorkerPhase.MEMBER:
            self._remove_member(worker, now)
            if event.ending or event.told:
                worker.enter(WorkerPhase.ENDING if event.ending else WorkerPhase.LEAVING, now)
        elif worker is not None and event.told and worker.phase in BETWEEN:
            worker.enter(WorkerPhase.LEAVING, now)

    def _on_answered(self, now: float, event: job_events.Answered) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is not None:
            worker.answered_s = now

    def _on_exited(self, now: float, event: WorkerExited) -> None:
        worker = self.workers.pop(event.worker_id, None)
        self._steps.pop(event.worker_id, None)
        if worker is None:
            return
        if worker.phase in GONE and not worker.to_blame:
            self.slots.give_back(worker.slot)
        elif event.code == 0 and worker.phase not in GONE and (worker.senior or not self.generation):
            self.slots.give_back(worker.slot)
            self.finished.add(worker.worker_id)
            self.over = self.over or (f"{worker} has finished" if worker.phase is WorkerPhase.MEMBER else "")
        else:
            resting = self.slots.fail(worker.slot, now, worker.lasted_s(now))
            self.answers += [resting] if resting is not None else []
            self._lose(worker, now, exit_status(event.code) or LOST, event.description)

    def _on_hung(self, now: float, event: job_events.WorkerHung) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is not None and worker.phase not in GONE:
            self.doom(worker, now, event.reason)

    def _on_unfit(self, now: float, event: job_events.WorkerUnfit) -> None:
        worker = self.workers.get(event.worker_id)
        if worker is not None and worker.phase not in GONE:
            if worker.phase is WorkerPhase.MEMBER:
                self._remove_member(worker, now)
            self._answer(RefuseWorkers([event.worker_id]), event.reason)
            worker.enter(WorkerPhase.DISMISSED, now)  # it exits by itself, with its own error message

    def _on_host_lost(self, now: float, event: HostLost) -> None:
        lost = [worker for worker in self.workers.values() if worker.slot.host == event.host]
        for worker in lost:
            del self.workers[worker.worker_id]
            self._steps.pop(worker.worker_id, None)
            self._lose(worker, now, LOST, event.reason)
        resting = self.slots.lose(event.host, now)
        self.answers += [resting] if resting is not None else []

    def _on_generation_ended(self, now: float, event: GenerationEnded) -> None:
        if event.generation == self.generation:
            self.over = self.over or event.reason
            self.patience_from_s = now if self.patience_from_s is None else self.patience_from_s

    def _on_longest_step(self, now: float, event: job_events.LongestStep) -> None:
        # A report replaces the same worker's earlier report; reports older than ``LATELY_S`` are dropped.
        self._steps = {worker_id: said for worker_id, said in self._steps.items() if now - said[0] <= LATELY_S}
        if event.worker_id in self.workers or event.worker_id == job_events.UNTOLD:
            self._steps[event.worker_id] = (now, event.step_s)

    def _on_controller_replaced(self, now: float, _: job_events.ControllerReplaced) -> None:
        for worker in self.in_phase(WorkerPhase.READY):
            before = WorkerPhase.GREETED if self.generation else WorkerPhase.STARTING
            worker.enter(WorkerPhase.LEFT if worker.senior else before, now)
        if self.patience_from_s is not None:
            self.patience_from_s = now  # workers could not connect before

    def _on_lead_replaced(self, now: float, event: job_events.LeadReplaced) -> None:
        for seat in event.members:
            slot = HostSlot(seat.host, seat.slot)
            worker = Worker(seat.worker_id, slot, WorkerPhase.MEMBER, now, senior=True, member_since_s=now)
            self.workers[seat.worker_id] = worker
            self.slots.occupy(slot, seat.worker_id)
        # Slots for the adopted members only, until hosts are found.
        room: dict[str, int] = {}
        for seat in event.members:
            room[seat.host] = max(room.get(seat.host, 0), seat.slot + 1)
        self.slots.found(room)
        self.generation, self.next_worker_id = event.generation, event.next_worker_id
        self.members = tuple(seat.worker_id for seat in event.members)
        self._seniority, self.adopting, self.awaits_hosts = list(self.members), True, True

    def _remove_member(self, worker: Worker, now: float) -> None:
        """Remove a member from its generation, which is then over for all members: each of them rejoins or exits."""
        worker.enter(WorkerPhase.LEFT, now)
        self.over = self.over or f"{worker} has left it"

    def _lose(self, worker: Worker, now: float, status: int, description: str) -> None:
        """Count a worker as failed; if it was a member, its generation is over."""
        if worker.worker_id in self.members or not self.generation:
            self.failures.setdefault(worker.worker_id, (status, description))
        if worker.phase is not WorkerPhase.MEMBER:
            return
        if not self.over or self.patience_from_s is None:
            self._answer(AbortGeneration(), description)
            self.patience_from_s = now
        self.over = self.over or description

    def _answer(self, action: AnyAction, reason: str) -> None:
        self.answers.append(Decision(action, reason))

    _HANDLERS: ClassVar[dict[type, Callable[[JobState, float, Any], None]]] = {
        job_events.HostsFound: _on_found,
        job_events.WorkerStarted: _on_started,
        job_events.WorkerConnected: _on_came,
        job_events.WorkerLeft: _on_left,
        job_events.Answered: _on_answered,
        WorkerExited: _on_exited,
        job_events.WorkerHung: _on_hung,
        job_events.WorkerUnfit: _on_unfit,
        HostLost: _on_host_lost,
        GenerationEnded: _on_generation_ended,
        job_events.LongestStep: _on_longest_step,
        job_events.ControllerReplaced: _on_controller_replaced,
        job_events.LeadReplaced: _on_lead_replaced,
    }

    # -- changes ------------------------------------------------------------------------------------------------------

    def hire(self, slot: HostSlot, now: float) -> Worker:
        """Register a new worker, which the caller starts in ``slot``."""
        worker = Worker(self.next_worker_id, slot, WorkerPhase.STARTING, now)
        self.workers[worker.worker_id] = worker
        self.slots.occupy(slot, worker.worker_id)
        self.next_worker_id += 1
        return worker

    def begin(self, chosen: Sequence[Worker], now: float) -> None:
        """Begin the next generation with these workers, by rank."""
        for worker in chosen:
            worker.enter(WorkerPhase.MEMBER, now)
            worker.senior = True
            worker.member_since_s = now if worker.member_since_s is None else worker.member_since_s
            self.slots.proved(worker.slot)
        self.generation += 1
        self.members = tuple(worker.worker_id for worker in chosen)
        self._seniority = [
            *self.members,
            *(worker_id for worker_id in self._seniority if worker_id not in self.members),
        ]
        self.over, self.failures, self.patience_from_s, self.adopting = "", {}, None, False

    def begin_anew(self, now: float) -> None:
        """Restart the job from its checkpoint, because no member of the previous leader's generation is left."""
        for worker in self.in_order():  # they know that the job had begun, and cannot begin it
            self.doom(worker, now, f"{worker} has no state of the job, which begins anew", to_blame=False)
        self.generation, self.members, self.over, self.failures = 0, (), "", {}
        self.patience_from_s, self.adopting = None, False

    def doom(self, worker: Worker, now: float, reason: str, to_blame: bool = True) -> None:
        """Order the kill of a worker; ``to_blame``: count it as a failure of its slot."""
        self._answer(Kill(worker.worker_id), reason)
        if to_blame:
            self._lose(worker, now, exit_status(-9), reason)
        worker.enter(WorkerPhase.DOOMED, now)
        worker.to_blame = to_blame

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True while a generation trains, as far as the events show."""
        return bool(self.generation) and not self.over

    def in_order(self) -> list[Worker]:
        """All workers of the job, the oldest first."""
        worker_ids = [worker_id for worker_id in self._seniority if worker_id in self.workers]
        worker_ids += sorted(self.workers.keys() - set(worker_ids))
        return [worker for worker_id in worker_ids if (worker := self.workers[worker_id]).phase not in GONE]

    def in_phase(self, *phases: WorkerPhase) -> list[Worker]:
        """Workers in one of these phases, the oldest first."""
        return [worker for worker in self.in_order() if worker.phase in phases]

    def may_stay(self, worker: Worker) -> bool:
        """True unless its host or slot must no longer be used."""
        return self.slots.exists(worker.slot)

    @property
    def step_s(self) -> float:
        """Duration of the longest recent step of any worker, in seconds."""
        return max((step_s for _, step_s in self._steps.values()), default=0.0)

    @property
    def patience_ends_s(self) -> float | None:
        """Time at which the wait for workers that have ``LEFT`` ends; ``None``: no limit now."""
        patience_s = self.policy.patience_s(self.step_s)
        if not self.over or patience_s is None or self.patience_from_s is None or self.awaits_hosts:
            return None
        return self.patience_from_s + patience_s

    def hangs_at_s(self, worker: Worker) -> float | None:
        """Time at which a member that others wait for counts as hung; later if its process answers. ``None``: never."""
        patience_s = self.policy.patience_s(self.step_s)
        if not self.over or patience_s is None or self.patience_from_s is None or self.awaits_hosts:
            return None
        longest_s = self.patience_from_s + max(patience_s, self.policy.stall_shutdown_s)
        return min(longest_s, max(self.patience_from_s, worker.answered_s) + patience_s)

    def why_hung(self, ends_s: float) -> str:
        """Reason for killing, at ``ends_s``, a member that others have waited for."""
        waited = f" after {ends_s - self.patience_from_s:.0f} s" if self.patience_from_s is not None else ""
        return (
            f"it has not noticed{waited} that its generation is over (--hang-timeout {self.policy.hang_timeout_s:g}, "
            f"or {STEPS_OF_PATIENCE} of the longest recent steps, of {self.step_s:.1f} s)"
        )

    def awaited(self, now: float) -> list[Worker]:
        """Workers that must connect, exit or time out before the next generation can form."""
        if not self.generation:
            return self.in_phase(WorkerPhase.STARTING)
        ends_s = self.patience_ends_s
        is_patient = ends_s is None or now < ends_s
        return self.in_phase(WorkerPhase.MEMBER, *([WorkerPhase.LEFT] if is_patient else []))

    @property
    def needed(self) -> int:
        """Minimum number of members of a generation; workers that have finished reduce it."""
        return max(1, self.policy.min_np - len(self.finished))

    def chosen(self) -> list[Worker]:
        """Members of the next generation, by rank, from the ready workers: rank 0 has the state of the job."""
        ready = self.in_phase(WorkerPhase.READY)
        staying = [worker for worker in ready if self.may_stay(worker)]
        if self.generation:
            newest = max((worker.step for worker in ready if worker.holds), default=NEW)
            if newest == NEW:
                return []
            if not any(worker.holds and worker.step == newest for worker in staying):
                return self._handing_over(ready, newest)
            staying.sort(key=lambda worker: not worker.holds)
        return staying[: self.policy.max_np or None]

    def _handing_over(self, ready: Sequence[Worker], newest: int) -> list[Worker]:
        """Members of a generation in which workers that must leave hand over the newest state, which no other has.

        If ``max_np`` does not admit all, one of these workers and the receivers are enough. If ``max_np`` equals
        ``needed``, this generation has one member more; else a new worker would be dismissed and the next one started.
        """
        room = self.policy.max_np or len(ready)
        takers = [worker for worker in ready if self.may_stay(worker)][: max(self.needed, room - 1)]
        givers = sorted(
            (worker for worker in ready if not self.may_stay(worker)),
            key=lambda worker: not (worker.holds and worker.step == newest),
        )[: max(1, room - len(takers))]
        return sorted(
            (worker for worker in ready if worker in givers or worker in takers), key=lambda worker: not worker.holds
        )

    def joiners(self) -> list[Worker]:
        """Workers that are ready and may become members, while a generation runs."""
        ready = [worker for worker in self.in_phase(WorkerPhase.READY) if self.may_stay(worker)]
        members = [worker for worker in self.in_phase(WorkerPhase.MEMBER) if self.may_stay(worker)]
        return ready[: max(0, self.policy.max_np - len(members))] if self.policy.max_np else ready

    def status(self) -> tuple[int, str]:
        """Exit status and reason if the job ended now: the first failure since the latest generation began."""
        return next(iter(self.failures.values()), (0, ""))
