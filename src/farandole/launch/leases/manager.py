"""Manager of the leases of one run: tracks leases, calls the policy, and sends its decisions to the scheduler.

    manager = LeaseManager(limits, supply, scheduler, journal=write_line)
    manager.book.admit(terms, now_s)                            # the agent of a lease has connected
    for host, why in manager.turn(now_s, have=6, own=2, training={"node2+812_0"}): ...      # this host must leave

It has no thread and never waits: it reads the scheduler's answers after they have arrived, and the loop that owns it
sleeps until one of ``fds`` is readable, or until ``due_s``. Every decision is made by ``decide``, which is pure; each
of its calls that decides something is a line of the journal, from which the next controller continues.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import final

import msgspec

from farandole.control.run_messages import LeaseView, Progressed
from farandole.launch.leases.actions import (
    LOOKS,
    AnyLeaseAction,
    CancelPending,
    EndLease,
    LeaseDecision,
    LookAtNodes,
    LookAtQueue,
    Release,
    SetLimit,
    SetNice,
    SubmitArray,
)
from farandole.launch.leases.decide import decide
from farandole.launch.leases.job_arrays import LeaseSupply
from farandole.launch.leases.journal import record, record_asked
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.lease_table import LeaseTable
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import (
    AnyLeaseOrder,
    LeaseAdvice,
    LeaseObservation,
    LeaseProgress,
    LeaseRefusal,
    Stop,
)
from farandole.launch.leases.policy_context import CANCELLED, ENDED, RELEASED, count
from farandole.launch.leases.policy_state import LeasePlan
from farandole.launch.leases.scheduler import (
    Answer,
    CallDone,
    CallRefused,
    CallUnanswered,
    Looked,
    NodesLooked,
    Scheduler,
    Submitted,
)

ALIKE = 1.25
"""Ratio from which on two step times count as different."""

MOST_SAID = 8
"""Number of last decisions that users are shown."""

FIND_AGAIN_S = 60.0
"""Pause before the next search for an array whose submission got no answer."""


@final
class LeaseManager:
    """Manager of the leases of one run. Times are in seconds since 1970."""

    def __init__(
        self,
        limits: LeaseLimits,
        supply: LeaseSupply,
        scheduler: Scheduler | None,
        journal: Callable[[str], object],
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.limits, self._supply, self._scheduler = limits, supply, scheduler
        self._journal, self.say = journal, say
        self.book = LeaseTable()
        self.busy: Collection[str] | None = None
        """Hosts whose workers have something to do, if others may be idle: the policy gives those up first."""
        self._plan = LeasePlan()
        self._progress = LeaseProgress()
        self._orders: list[AnyLeaseOrder] = []
        self._sizes = (0, 0)
        """Number of workers at the last decision, and how many of them were the leader's own."""
        self._refusals: list[LeaseRefusal] = []
        self._answered = 0
        self._counts: dict[str, int] = {}
        """Number of leases in each array, by the array's nonce."""
        self._find_s = math.inf
        self._looked_s = time.time()  # as if the array had just been submitted
        self._ends: dict[str, str] = {}
        """Leases that must end, and why. Their hosts must leave even if an agent connects later."""
        self._news: object = None
        """Input of the policy at its last call."""
        self.said: deque[str] = deque(maxlen=MOST_SAID)

    # -- called by the loop -------------------------------------------------------------------------------------------

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that become readable when the scheduler has answered."""
        return self._scheduler.fds if self._scheduler is not None else ()

    def due_s(self, now_s: float) -> float | None:
        """Seconds from now until ``turn`` is due even if nothing changes."""
        call_s = self._scheduler.deadline_s if self._scheduler is not None else None
        moments = [self._plan.next_s - now_s if self._plan.next_s else math.inf, self._find_s - now_s]
        if call_s is not None:
            moments.append(call_s - time.monotonic())
        soonest = min(moments)
        return max(0.0, soonest) if soonest < math.inf else None

    def views(self) -> list[LeaseView]:
        """The leases, in the form shown to users."""
        return [
            LeaseView(each.job, each.phase.value, each.workers, each.since_s, each.ends_s, each.cause)
            for each in self.book.leases
        ]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the script reported last."""
        return dict(self._progress.metrics)

    @property
    def plan(self) -> LeasePlan:
        """State of the policy."""
        return self._plan

    # -- events -------------------------------------------------------------------------------------------------------

    def order(self, order: AnyLeaseOrder) -> None:
        """Queue an order of a user."""
        self._orders.append(order)

    def asked(self, now_s: float) -> str:
        """Line of the journal with the orders that no decision has used yet, for the next controller."""
        return record_asked(self.limits, self._plan, self._see(now_s, *self._sizes), self._orders)

    def ended(self, now_s: float) -> str:
        """Line of the journal for a later controller after all leases are cancelled: what they used, and no lease."""
        seen = msgspec.structs.replace(self._see(now_s, 0, 0), leases=(), arrays_answered=self._plan.arrays)
        return record_asked(self.limits, LeasePlan(arrays=self._plan.arrays), seen, [Stop()])

    def progressed(self, told: Progressed, now_s: float) -> None:
        """Store a report of the script."""
        advice = self._progress.advice
        if told.advice is not None:
            given = told.advice
            low, high, saves_s = (_finite(number) for number in (given.low, given.high, given.saves_s))
            advice = LeaseAdvice(now_s, given.workers, low, high, saves_s, given.refusal)
        metrics = {**self._progress.metrics, **told.metrics}
        batch = _finite(told.advice.batch) if told.advice is not None else self._progress.batch
        pause_s = told.pause_s or self._progress.pause_s
        known = {"metrics": metrics, "advice": advice, "batch": batch, "pause_s": pause_s}
        self._progress = msgspec.structs.replace(self._progress, **known)

    def stepped(self, step_s: float) -> None:
        """Store the longest recent step time, unless it is within a factor ``ALIKE`` of the stored one."""
        known_s = self._progress.step_s
        if not known_s / ALIKE <= step_s <= known_s * ALIKE:
            self._progress = msgspec.structs.replace(self._progress, step_s=step_s)

    def turn(self, now_s: float, have: int | None, own: int, training: Collection[str]) -> Iterator[tuple[str, str]]:
        """Read the scheduler's answers, decide, call the scheduler; yields hosts that must leave, with the reason.

        ``have``: number of workers that train; ``None``: none yet, and nothing is decided before they do.
        """
        self._record_answers(self._scheduler.answers() if self._scheduler is not None else (), now_s)
        self._begin(now_s)
        yield from self._leaving()
        if have is None:
            return
        before = {lease.job: lease for lease in self.book.leases}
        self.book.train(training, now_s)
        self._note_warm_up(before, now_s)
        is_told = bool(self._orders or self._refusals or self.book.has_orders)
        is_due = 0 < self._plan.next_s <= now_s
        if self._known(have, own) == self._news and not is_told and not is_due:
            return  # unchanged: ``turn`` runs after every message of a worker
        self._sizes = have, own
        told = {"orders": (*self._orders, *self.book.orders()), "refusals": tuple(self._refusals)}
        seen = msgspec.structs.replace(self._see(now_s, have, own), **told)
        self._orders.clear()
        self._refusals.clear()
        plan, decisions = decide(self.limits, self._plan, seen)
        self._journal(record(self.limits, self._plan, seen, plan, decisions))
        self._plan = plan
        self.book.forget()
        self._news = self._known(have, own)
        for decision in decisions:
            self._print_reason(decision)
            self._obey(decision, now_s)
        yield from self._leaving()

    def restore(
        self, plan: LeasePlan, seen: LeaseObservation, now_s: float, asked: Collection[AnyLeaseOrder] = ()
    ) -> None:
        """Continue from the last line of the journal."""
        # A ``Stop`` was for the previous leader, which has ended; this leader exists because the job was requeued. The
        # launcher keeps a ``Stop`` that was given to this leader.
        self._orders += [order for order in asked if not isinstance(order, Stop)]
        self._plan = msgspec.structs.replace(plan, stopped=False)
        self._answered = seen.arrays_answered
        self._progress = seen.progress
        self._sizes = seen.have, seen.own  # ``asked`` uses them before the first decision
        self.book.restore(seen.leases, seen.node_hours, now_s)
        if plan.arrays > self._answered:  # the answer went to the previous controller
            self._find_s = now_s + FIND_AGAIN_S
        for lease in self.book.leases:
            self._repeat(lease, now_s)

    def _repeat(self, lease: Lease, now_s: float) -> None:
        """Repeat the last decision about a lease: the previous controller may have died before it was carried out."""
        note = self._plan.notes.get(lease.job)
        if note is None:
            return
        if note.told == ENDED:
            self._end(lease.job, "it was told so before the controller was replaced", now_s)
        elif note.told == RELEASED and lease.phase in (LeasePhase.HELD, LeasePhase.ASKED):
            self._obey(LeaseDecision(Release(lease.job), ""), now_s)
        elif note.told == CANCELLED:
            self._obey(LeaseDecision(CancelPending(lease.job), ""), now_s)

    def close(self) -> None:
        """Close the scheduler, with any command that still runs."""
        if self._scheduler is not None:
            self._scheduler.close()

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        """Add the array that was submitted with the leader, once; search again for an array in doubt."""
        if self._supply.array and not self._answered and not self._plan.arrays:
            self._plan = msgspec.structs.replace(self._plan, arrays=1)
            self._answered = 1
            self.book.submitted(self._supply.array, self._supply.count, self._supply.lease, now_s)
        if now_s >= self._find_s and self._scheduler is not None:
            self._find_s = math.inf
            self._scheduler.find(self._nonce(self._plan.arrays))

    def _record_answers(self, answers: Iterable[Answer], now_s: float) -> None:
        for answer in answers:
            self._note_release(answer)
            if isinstance(answer, Submitted):
                self._answered = max(self._answered, self._plan.arrays)
                if answer.array:
                    self.book.submitted(
                        answer.array,
                        self._counts.get(answer.nonce, self.limits.array_leases),
                        self._supply.lease,
                        now_s,
                    )
            elif isinstance(answer, Looked):
                self._looked_s = now_s
                self.book.look(answer.array, answer.jobs, now_s)
            elif isinstance(answer, NodesLooked):
                self.book.drain(answer.nodes, answer.drained)
            elif isinstance(answer, CallRefused):
                self._refused(answer, now_s)
            elif isinstance(answer, CallUnanswered):
                self._unanswered(answer, now_s)
            elif isinstance(answer, CallDone):
                self.say(f"{answer.call} {answer.job}: done")

    def _note_release(self, answer: Answer) -> None:
        """Note that a release is done, refused or unanswered: later looks at the queue include its effect."""
        if isinstance(answer, CallDone) and answer.call == "start":
            self.book.released(answer.job)
        elif isinstance(answer, CallRefused | CallUnanswered) and answer.call == "start":
            self.book.released(answer.subject)

    def _refused(self, answer: CallRefused, now_s: float) -> None:
        self._refusals.append(LeaseRefusal(answer.call, answer.subject, answer.words))
        if answer.call == "submit":
            self._answered = self._plan.arrays
        elif answer.call == "find":
            self._find_s = now_s + FIND_AGAIN_S
        elif answer.call == "start":
            self.book.revert(answer.subject, now_s)

    def _unanswered(self, answer: CallUnanswered, now_s: float) -> None:
        if answer.call in ("submit", "find"):  # it may be submitted: submit no other until that is known
            self._find_s = now_s + FIND_AGAIN_S
        elif answer.call == "start":
            self.book.revert(answer.subject, now_s)  # a second release does no harm
        elif answer.call in ("cancel", "set_limit"):  # the policy relies on neither, and retries a cancel
            self._refusals.append(LeaseRefusal(answer.call, answer.subject, answer.words))

    def _end(self, job: str, reason: str, now_s: float) -> None:
        self._ends[job] = reason
        self.book.told(job, LeasePhase.LEAVING, now_s)

    def _leaving(self) -> Iterator[tuple[str, str]]:
        """Yield the hosts of leases that must end, with the reason; in each turn, because agents may connect later."""
        alive = {lease.job for lease in self.book.leases if lease.phase is not LeasePhase.GONE}
        self._ends = {job: reason for job, reason in self._ends.items() if job in alive}
        for job, reason in self._ends.items():
            for host in self.book.hosts(job):
                yield host, reason

    def _obey(self, decision: LeaseDecision, now_s: float) -> None:
        action = decision.action
        if isinstance(action, EndLease):
            self._end(action.job, decision.reason, now_s)
        elif self._scheduler is not None:
            self._call_scheduler(self._scheduler, action, now_s)

    def _call_scheduler(self, scheduler: Scheduler, action: AnyLeaseAction, now_s: float) -> None:
        if isinstance(action, Release):
            self.book.releasing(action.job, now_s)
            scheduler.start(action.job)
        elif isinstance(action, SubmitArray):
            self._counts[self._nonce(action.serial)] = action.count
            scheduler.submit(self._supply.script, action.count, self._nonce(action.serial))
        elif isinstance(action, CancelPending):
            self.book.told(action.job, LeasePhase.GONE, now_s)
            scheduler.cancel(action.job)
        elif isinstance(action, SetLimit):
            scheduler.set_limit(action.job, action.minutes)
        elif isinstance(action, SetNice):
            scheduler.set_nice(action.job, action.nice)
        elif isinstance(action, LookAtQueue):
            for array in dict.fromkeys(lease.job.partition("_")[0] for lease in self.book.leases if "_" in lease.job):
                scheduler.look(array)
        elif isinstance(action, LookAtNodes) and (nodes := set().union(*self.book.nodes().values())):
            scheduler.look_at_nodes(sorted(nodes))

    # -- input of the policy ------------------------------------------------------------------------------------------

    def _known(self, have: int, own: int) -> object:
        """All inputs of a decision; of metrics only the results of the rules, because scripts report all the time."""
        progress = self._progress
        rules = [rule.holds(progress.metrics) for rule in self.limits.rules]
        others = msgspec.structs.replace(progress, metrics={})
        return self.book.leases, have, own, others, rules, self.limits, self._answered

    def _see(self, now_s: float, have: int, own: int) -> LeaseObservation:
        leases, busy = self.book.leases, self.busy
        if busy is not None:
            idle = [not any(host in busy for host in self.book.hosts(lease.job)) for lease in leases]
            leases = tuple(msgspec.structs.replace(each, idle=flag) for each, flag in zip(leases, idle, strict=True))
        return LeaseObservation(
            now_s=now_s,
            have=have,
            own=own,
            leases=leases,
            progress=self._progress,
            looked_s=max(0.0, now_s - self._looked_s),
            node_hours=self.book.node_hours(now_s),
            arrays_answered=self._answered,
            utc_offset_s=float(time.localtime(now_s).tm_gmtoff),
        )

    def _note_warm_up(self, before: dict[str, Lease], now_s: float) -> None:
        """Measure the warm-up of leases that have just become members, from the connection of their agents on."""
        for lease in self.book.leases:
            was = before.get(lease.job)
            if was is not None and was.phase is LeasePhase.WARMING and lease.phase is LeasePhase.MEMBER:
                called = len(self.book.hosts(lease.job))
                if called < lease.nodes:
                    lost = (
                        f"{lease.job} counts as {count(lease.workers)}: {called} of its {lease.nodes} nodes have called"
                    )
                    self._speak(f"{lost}; see its output")
                warmup_s = max(now_s - was.since_s, self._progress.warmup_s)
                self._progress = msgspec.structs.replace(self._progress, warmup_s=warmup_s)

    def _print_reason(self, decision: LeaseDecision) -> None:
        if isinstance(decision.action, LOOKS):
            return
        self._speak(decision.reason)

    def _speak(self, text: str) -> None:
        """Print ``text``, and keep it for ``farandole ps``."""
        self.said.append(f"{time.strftime('%H:%M:%S')} {text}")
        self.say(text)

    def _nonce(self, serial: int) -> str:
        return self._supply.nonce_of(serial)


def _finite(number: float) -> float:
    """``number`` if finite, else 0 for no bound: JSON has no infinity."""
    return number if math.isfinite(number) else 0.0
