"""First step of the policy of leases: apply orders, refusals, and phase changes of leases since the last call."""

from __future__ import annotations

from typing import assert_never

from farandole.largebatch.advice import duration
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.observation import (
    AnyLeaseOrder,
    Hold,
    OutsideCancel,
    OutsideHold,
    OutsideLimit,
    OutsideSuspend,
    Resume,
    ScaleTo,
    Stop,
)
from farandole.launch.leases.policy_context import CANCELLED, ENDED, RELEASED, UNNOTED, PolicyContext, count
from farandole.launch.leases.policy_state import LeaseNote, LeasePause

BREAKER = "breaker"
KEPT_WAITS = 50
RUNS = (LeasePhase.STARTING, LeasePhase.WARMING, LeasePhase.MEMBER)


def apply_orders(turn: PolicyContext) -> None:
    """Update the plan from the observation. Orders come first, so that a cancelled lease does not count as failed."""
    for order in turn.seen.orders:
        _obey(turn, order)
    _take_refusals(turn)
    notes = turn.plan.notes
    for lease in turn.leases:
        note = notes.get(lease.job)
        if note is None or note.phase is not lease.phase:
            _follow(turn, lease, note)
    if len(notes) != len(turn.leases):
        listed = {lease.job for lease in turn.leases if lease.phase is not LeasePhase.GONE}
        turn.plan.notes = {job: note for job, note in notes.items() if job in listed}
    turn.plan.waits_s = turn.plan.waits_s[-KEPT_WAITS:]


def _obey(turn: PolicyContext, order: AnyLeaseOrder) -> None:
    """Apply an order to the plan."""
    plan = turn.plan
    match order:
        case ScaleTo(np, why):
            plan.ordered, plan.ordered_why = max(0, np), why
            plan.frozen_s = plan.frozen_s if why else 0.0  # only a user may outdo what users told the scheduler
        case Hold():
            plan.held = True
        case Resume():
            plan.held, plan.ordered, plan.frozen_s = False, -1, 0.0
            plan.failed, plan.pauses, plan.said = 0, {}, {}
        case Stop():
            plan.stopped = True
        case OutsideCancel(job):
            if turn.note(job).told not in (ENDED, CANCELLED):
                turn.note(job, told=CANCELLED, told_s=turn.now_s)
                _freeze(turn, f"{job} was cancelled by somebody")
        case OutsideHold(job, barred):
            turn.note(job, barred=True, told="")
            _freeze(turn, f"{job} is held by {'an administrator' if barred else 'somebody'}")
        case OutsideLimit(job):
            turn.note(job, limited=True)
        case OutsideSuspend(job):
            after = "its workers count as lost, another lease takes their place, and it ends when it is resumed"
            turn.print_once("order", f"{job} was suspended by somebody: {after}")
        case _:
            assert_never(order)


def _freeze(turn: PolicyContext, what: str) -> None:
    turn.plan.frozen_s = turn.now_s + turn.limits.order_s
    wait = duration(turn.limits.order_s)
    turn.print_once("order", f"{what}: nothing is released for {wait}, or until farandole release")


def _take_refusals(turn: PolicyContext) -> None:
    """Pause calls that the scheduler refuses. Several refusals of the same call count once: they have one cause."""
    plan = turn.plan
    for call in dict.fromkeys(refusal.call for refusal in turn.seen.refusals):
        of_call = [refusal for refusal in turn.seen.refusals if refusal.call == call]
        words = of_call[0].words
        if call in ("submit", "start", "cancel"):
            times = plan.pauses[call].times + 1 if call in plan.pauses else 1
            plan.pauses[call] = LeasePause(times, turn.now_s + turn.limits.pause_s(times), words)
        for refusal in of_call:
            if call in ("start", "cancel") and refusal.subject in plan.notes:
                turn.note(refusal.subject, told="")
            elif call == "set_limit" and refusal.subject in plan.notes:
                turn.note(refusal.subject, limited=True, minutes=0)  # keep its old limit
        turn.print_once(call, f"the scheduler refuses to {call.replace('_', ' the ')}: {words}; the run goes on")


def _follow(turn: PolicyContext, lease: Lease, note: LeaseNote | None) -> None:
    """Update the plan for the new phase of a lease."""
    old, job, phase = note or UNNOTED, lease.job, lease.phase
    plan, was = turn.plan, old.phase
    if phase is LeasePhase.GONE:
        _bury(turn, lease, old)
        return
    new = turn.note(job, phase=phase)
    if phase is LeasePhase.HELD:
        plan.pauses.pop("submit", None)
        return
    if was is LeasePhase.HELD and old.told == RELEASED:
        plan.pauses.pop("start", None)
    elif (note is None and lease.guest) or (was is LeasePhase.HELD and not old.told):
        # A user released or lent it: treat this as an order, and do not cancel the lease as surplus.
        turn.volunteers += lease.workers
        new = turn.note(job, asked_s=0.0 if note is None else turn.now_s, barred=False)
        what = "lent" if note is None else "released"
        turn.print_once("order", f"{job} was {what} by somebody: it is kept, as long as the bounds allow it")
    new = turn.note(job, barred=False) if new.barred else new
    if phase in RUNS and was not in RUNS and new.asked_s:
        started_s = lease.since_s if phase is LeasePhase.STARTING and lease.since_s else turn.now_s
        plan.waits_s += (max(0.0, started_s - new.asked_s),)
    if phase is LeasePhase.MEMBER and not new.joined:
        turn.note(job, joined=True)
        plan.grown_s = turn.now_s if new.growth else plan.grown_s
        plan.failed = 0
        plan.pauses.pop(BREAKER, None)


def _bury(turn: PolicyContext, lease: Lease, note: LeaseNote) -> None:
    """Count a lease as failed if it was released, never became a member, and was not told to end."""
    turn.plan.notes.pop(lease.job, None)
    was_asked = note.phase not in (None, LeasePhase.HELD) or note.told == RELEASED
    if not was_asked or note.joined or note.told in (ENDED, CANCELLED):
        return
    plan, limits = turn.plan, turn.limits
    plan.failed += 1
    if plan.failed >= limits.breaker_leases and not turn.is_paused(BREAKER):
        times = plan.pauses[BREAKER].times + 1 if BREAKER in plan.pauses else 1
        pause_s = limits.pause_s(times)
        plan.pauses[BREAKER] = LeasePause(times, turn.now_s + pause_s, lease.cause)
        last = f" (the last, {lease.job}: {lease.cause})" if lease.cause else ""
        failed = f"{count(plan.failed, 'lease')} in a row ended before they could train{last}"
        turn.print_once(BREAKER, f"{failed}: nothing is released for {duration(pause_s)}; see their output")
