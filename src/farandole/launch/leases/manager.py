"""Leases of one run: what is known of them, what the policy decides, and what the scheduler is asked for.

    manager = LeaseManager(limits, supply, scheduler, journal=write_line)
    manager.book.admit(terms, now_s)                            # the agent of a lease has called
    for host, why in manager.turn(now_s, have=6, own=2, training={"node2+812_0"}): ...      # that host is to leave

No thread, no wait: the scheduler's answers are taken in when they have come, and the loop that owns this sleeps until
one of ``fds`` is readable, or ``due_s``. Every decision is made by ``decide``, which is pure; each of its calls that
decides something is a line of the journal, from which the next controller goes on.
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
"""Ratio of two durations of steps by which they differ."""

MOST_SAID = 8
"""Last decisions that people are shown."""

FIND_AGAIN_S = 60.0
"""Pause before an array is looked for again of which it is not known whether it was submitted."""


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
        self._plan = LeasePlan()
        self._progress = LeaseProgress()
        self._orders: list[AnyLeaseOrder] = []
        self._sizes = (0, 0)
        """Workers that there were at the last decision, and those of the lead among them."""
        self._refusals: list[LeaseRefusal] = []
        self._answered = 0
        self._counts: dict[str, int] = {}
        """Leases in each array, by its nonce."""
        self._find_s = math.inf
        self._looked_s = time.time()  # as if: the array has just been submitted
        self._ends: dict[str, str] = {}
        """Leases that are to end, and why: also hosts of theirs are to leave whose agents call later."""
        self._news: object = None
        """What the policy has seen last."""
        self.said: deque[str] = deque(maxlen=MOST_SAID)

    # -- what the loop asks -------------------------------------------------------------------------------------------

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that are readable when the scheduler has answered."""
        return self._scheduler.fds if self._scheduler is not None else ()

    def due_s(self, now_s: float) -> float | None:
        """Seconds from now until ``turn`` has something to do without any news."""
        call_s = self._scheduler.deadline_s if self._scheduler is not None else None
        moments = [self._plan.next_s - now_s if self._plan.next_s else math.inf, self._find_s - now_s]
        if call_s is not None:
            moments.append(call_s - time.monotonic())
        soonest = min(moments)
        return max(0.0, soonest) if soonest < math.inf else None

    def views(self) -> list[LeaseView]:
        """The leases, for people."""
        return [
            LeaseView(each.job, each.phase.value, each.workers, each.since_s, each.ends_s, each.cause)
            for each in self.book.leases
        ]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that the script has reported last."""
        return dict(self._progress.metrics)

    @property
    def plan(self) -> LeasePlan:
        """Memory of the policy."""
        return self._plan

    # -- what happens -------------------------------------------------------------------------------------------------

    def order(self, order: AnyLeaseOrder) -> None:
        """Take in an order of a person."""
        self._orders.append(order)

    def asked(self, now_s: float) -> str:
        """Line of the journal by which the next controller knows the orders that nothing was decided about yet."""
        return record_asked(self.limits, self._plan, self._see(now_s, *self._sizes), self._orders)

    def progressed(self, told: Progressed, now_s: float) -> None:
        """Take in what the script reports."""
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
        """Take in the longest of the recent steps; one that is much like the last is no news."""
        known_s = self._progress.step_s
        if not known_s / ALIKE <= step_s <= known_s * ALIKE:
            self._progress = msgspec.structs.replace(self._progress, step_s=step_s)

    def turn(self, now_s: float, have: int, own: int, training: Collection[str]) -> Iterator[tuple[str, str]]:
        """Take in what has come, decide, and ask the scheduler; yields the hosts that are to leave, with the reason."""
        self._take(self._scheduler.answers() if self._scheduler is not None else (), now_s)
        self._begin(now_s)
        yield from self._leaving()
        if not have:
            return  # nobody has begun to train
        before = {lease.job: lease for lease in self.book.leases}
        self.book.train(training, now_s)
        self._note_warm_up(before, now_s)
        is_told = bool(self._orders or self._refusals or self.book.has_orders)
        is_due = 0 < self._plan.next_s <= now_s
        if self._known(have, own) == self._news and not is_told and not is_due:
            return  # the loop turns for every message of a worker
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
            self._tell(decision)
            self._obey(decision, now_s)
        yield from self._leaving()

    def restore(
        self, plan: LeasePlan, seen: LeaseObservation, now_s: float, asked: Collection[AnyLeaseOrder] = ()
    ) -> None:
        """Go on from the last line of the journal."""
        # An order to stop was for the lead before, which has ended; if this one goes on, it was queued again.
        # Of one that was given to this lead the launcher knows.
        self._orders += [order for order in asked if not isinstance(order, Stop)]
        self._plan = msgspec.structs.replace(plan, stopped=False)
        self._answered = seen.arrays_answered
        self._progress = seen.progress
        self._sizes = seen.have, seen.own  # until something is decided: what is asked for until then is a line, too
        self.book.restore(seen.leases, seen.node_hours, now_s)
        if plan.arrays > self._answered:  # its answer was for the controller before
            self._find_s = now_s + FIND_AGAIN_S
        for lease in self.book.leases:
            self._repeat(lease, now_s)

    def _repeat(self, lease: Lease, now_s: float) -> None:
        """Ask again for what was decided last about a lease: the controller before may have died before it was done."""
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
        """End what the scheduler still does."""
        if self._scheduler is not None:
            self._scheduler.close()

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> None:
        """Take in the array that was submitted with the lead, once; look again for one that is in doubt."""
        if self._supply.array and not self._answered and not self._plan.arrays:
            self._plan = msgspec.structs.replace(self._plan, arrays=1)
            self._answered = 1
            self.book.submitted(self._supply.array, self._supply.count, self._supply.lease, now_s)
        if now_s >= self._find_s and self._scheduler is not None:
            self._find_s = math.inf
            self._scheduler.find(self._nonce(self._plan.arrays))

    def _take(self, answers: Iterable[Answer], now_s: float) -> None:
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
        """Take in that a release is done, refused or unanswered: looks that come from now on were made after it."""
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
        if answer.call in ("submit", "find"):  # it may have been submitted: nothing else is, until that is known
            self._find_s = now_s + FIND_AGAIN_S
        elif answer.call == "start":
            self.book.revert(answer.subject, now_s)  # to release it once more does no harm
        elif answer.call in ("cancel", "set_limit"):  # the policy counts on neither, and tries a cancel again later
            self._refusals.append(LeaseRefusal(answer.call, answer.subject, answer.words))

    def _end(self, job: str, reason: str, now_s: float) -> None:
        self._ends[job] = reason
        self.book.told(job, LeasePhase.LEAVING, now_s)

    def _leaving(self) -> Iterator[tuple[str, str]]:
        """Hosts of leases that are to end, with the reason; again in each turn, as agents may call later."""
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
            self._ask(self._scheduler, action, now_s)

    def _ask(self, scheduler: Scheduler, action: AnyLeaseAction, now_s: float) -> None:
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

    # -- what the policy sees -----------------------------------------------------------------------------------------

    def _known(self, have: int, own: int) -> object:
        """Everything that a decision rests on. Of metrics only what the rules say: scripts report them all the time."""
        progress = self._progress
        rules = [rule.holds(progress.metrics) for rule in self.limits.rules]
        others = msgspec.structs.replace(progress, metrics={})
        return self.book.leases, have, own, others, rules, self.limits, self._answered

    def _see(self, now_s: float, have: int, own: int) -> LeaseObservation:
        return LeaseObservation(
            now_s=now_s,
            have=have,
            own=own,
            leases=self.book.leases,
            progress=self._progress,
            looked_s=max(0.0, now_s - self._looked_s),
            node_hours=self.book.node_hours(now_s),
            arrays_answered=self._answered,
            utc_offset_s=float(time.localtime(now_s).tm_gmtoff),
        )

    def _note_warm_up(self, before: dict[str, Lease], now_s: float) -> None:
        """Measure the warm-up of leases that have just become members, from the call of their agents on."""
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

    def _tell(self, decision: LeaseDecision) -> None:
        if isinstance(decision.action, LOOKS):
            return
        self._speak(decision.reason)

    def _speak(self, text: str) -> None:
        """Tell people, those who look at the output and those who ask."""
        self.said.append(f"{time.strftime('%H:%M:%S')} {text}")
        self.say(text)

    def _nonce(self, serial: int) -> str:
        return self._supply.nonce_of(serial)


def _finite(number: float) -> float:
    """The number; 0 stands for no bound, as a journal has no word for infinity."""
    return number if math.isfinite(number) else 0.0
