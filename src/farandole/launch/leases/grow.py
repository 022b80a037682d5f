"""Growing by the policy of leases: which leases are released now, and which arrays are submitted.

Everything in doubt counts against a release: a requested lease counts as present, a lease being cancelled may still
start, and the node-hours that a lease can still use count as spent.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

from farandole.largebatch.advice import duration
from farandole.launch.leases.actions import SetLimit, SetNice, SubmitArray
from farandole.launch.leases.apply_orders import BREAKER
from farandole.launch.leases.lease import Lease
from farandole.launch.leases.policy_context import HOUR_S, PolicyContext, by_number, count
from farandole.launch.leases.shrink import expiring, lead_s

SOONER = 1.5
"""Longest useful time of a lease, as a multiple of the remaining time of the training."""
MINUTE_S = 60.0


@final
class LeaseRoom(NamedTuple):
    """Time limits for a new lease: at most ``most_s`` by the bounds; ``wanted_s`` of it is useful."""

    most_s: float
    wanted_s: float


def grow(turn: PolicyContext) -> None:
    """Release leases up to the goal, within all bounds."""
    if turn.plan.stopped or not _lacks(turn, turn.limits.lease_workers):
        turn.plan.said.pop("growth", None)
        return
    if reason := _hindrance(turn):
        turn.print_once("growth", f"no lease is released: {reason}")
        return
    while _lacks(turn, turn.limits.lease_workers) and _has_place(turn):
        room = _room(turn)
        if reason := _useless(turn, room):
            turn.print_once("growth", f"no lease is released: {reason}")
            return
        lease = _choice(turn, room)
        if lease is None:
            _submit(turn, room)
            return
        _release(turn, lease, room)


def _fills_to(turn: PolicyContext) -> int:
    """The goal; if it rests on advice, at most what the latest advice supports or what was already reached."""
    plan = turn.plan
    if plan.ordered >= 0 or not plan.target:
        return plan.goal
    return min(plan.goal, max(plan.reached, plan.target, turn.limits.min_np))


def _lacks(turn: PolicyContext, more: int) -> bool:
    """Whether ``more`` workers are wanted; they may exceed the goal only if ``min_np`` requires it."""
    lasting = turn.lasting
    return lasting + more <= _fills_to(turn) or (
        lasting < turn.limits.min_np and lasting + more <= turn.limits.most_workers
    )


def _is_urgent(turn: PolicyContext) -> bool:
    """Whether workers are missing that a user ordered, or that ``min_np`` requires."""
    return turn.plan.ordered >= 0 or turn.lasting < turn.limits.min_np


def _hindrance(turn: PolicyContext) -> str:
    """Reason why no lease may be released now; empty if one may."""
    plan = turn.plan
    if turn.limits.paused:
        return "the policy file says paused"
    if plan.held:
        return "it is on hold; write farandole release"
    if turn.now_s < plan.frozen_s:
        return f"somebody has cancelled or held one; again at {turn.clock(plan.frozen_s)}"
    for call, what in (("start", "the scheduler has refused"), (BREAKER, "the last ones never trained")):
        if turn.is_paused(call):
            return f"{what}; again at {turn.clock(plan.pauses[call].until_s)}"
    return ""


def _has_place(turn: PolicyContext) -> bool:
    """Whether the bounds allow one more lease."""
    limits, alive = turn.limits, turn.alive
    if turn.plan.failed >= limits.breaker_leases and turn.pending + turn.young:
        return False  # only one at a time, until one becomes a member
    nodes = sum(map(turn.nodes, alive)) + limits.lease_nodes
    return (
        len(turn.waiting) < limits.most_pending
        and len(alive) < limits.most_leases
        and (not limits.most_nodes or nodes <= limits.most_nodes)
    )


def _room(turn: PolicyContext) -> LeaseRoom:
    """Time for one more lease within budget and hours, and how much of it is useful."""
    limits, progress = turn.limits, turn.seen.progress
    most_s = turn.closes_s - turn.now_s
    if limits.budget_node_hours:
        most_s = min(most_s, turn.unspent_node_hours(turn.alive) * HOUR_S / limits.lease_nodes)
    rest_s = progress.remaining_s * SOONER + progress.warmup_s if progress.remaining_s else math.inf
    return LeaseRoom(most_s, min(most_s, rest_s, _untried_s(turn)))


def _untried_s(turn: PolicyContext) -> float:
    """Longest lease length below that of all leases that have waited long: a shorter lease may fit a backfill hole."""
    late_s = turn.now_s - turn.limits.look_pending_s
    stuck = [turn.length_s(lease) for lease in turn.pending if turn.note(lease.job).asked_s <= late_s]
    lengths = sorted(turn.limits.lease_lengths_s, reverse=True)
    return next((length for length in lengths if all(length < other for other in stuck)), lengths[0])


def _useless(turn: PolicyContext, room: LeaseRoom) -> str:
    """Reason why a lease of that time is not worth releasing; empty if it is."""
    least_s = MINUTE_S + turn.margin_s
    if not _is_urgent(turn):
        least_s = max(least_s, turn.limits.worth_warmups * turn.seen.progress.warmup_s)
    if room.most_s < least_s:
        bound = "the hours" if room.most_s == turn.closes_s - turn.now_s else "the budget"
        return f"{bound} would leave it less than {duration(least_s)}"
    if room.wanted_s < least_s:
        return f"it would have less than {duration(least_s)} to train"
    return ""


def _choice(turn: PolicyContext, room: LeaseRoom) -> Lease | None:
    """The held lease to release: the shortest that is long enough, else the longest; ties go to the lowest number."""
    limits = turn.limits
    fits = [
        lease
        for lease in turn.held
        if lease.workers <= limits.lease_workers
        and turn.nodes(lease) <= limits.lease_nodes
        and (turn.length_s(lease) <= room.most_s or not turn.note(lease.job).limited)
    ]
    enough = [lease for lease in fits if turn.length_s(lease) >= room.wanted_s]
    if enough:
        return min(enough, key=lambda lease: (turn.length_s(lease), by_number(lease)))
    return min(fits, key=lambda lease: (-turn.length_s(lease), by_number(lease)), default=None)


def _release(turn: PolicyContext, lease: Lease, room: LeaseRoom) -> None:
    """Release a lease; with a shorter time limit if it cannot use, or may not have, all of its time."""
    plan, lasting = turn.plan, turn.lasting
    note = turn.note(lease.job)
    length_s = turn.length_s(lease)
    minutes = max(1, math.floor(room.wanted_s / MINUTE_S)) if room.wanted_s < length_s else 0
    if minutes and not note.limited:
        turn.note(lease.job, minutes=minutes)
        why = f"it can use {duration(minutes * MINUTE_S)} of {duration(length_s)}, and the shorter finds a hole sooner"
        turn.decide(SetLimit(lease.job, minutes), why)
    if plan.nice > note.nice:
        turn.note(lease.job, nice=plan.nice)
        turn.decide(SetNice(lease.job, plan.nice), f"a rule holds: {plan.fired[-1]}")
    is_growth = lasting >= plan.reached
    turn.release(lease, _why(turn, lasting))
    turn.note(lease.job, growth=is_growth)
    plan.reached = min(plan.goal, max(plan.reached, turn.lasting))
    if is_growth:
        plan.grown_s = turn.now_s


def _why(turn: PolicyContext, lasting: int) -> str:
    plan, leaving = turn.plan, expiring(turn)
    if leaving:
        soonest = leaving[0]
        early = duration(lead_s(turn))
        return f"{soonest.job} ends at {turn.clock(soonest.ends_s)}, and a successor takes {early} to come"
    here = f"{count(plan.goal)} wanted, {lasting} there or asked for"
    return f"{here}: {plan.why}" if lasting >= plan.reached else f"{here}: one of them has gone"


def _submit(turn: PolicyContext, room: LeaseRoom) -> None:
    """Submit the next array, unless the previous submission is still unanswered."""
    plan, limits = turn.plan, turn.limits
    if plan.arrays > turn.seen.arrays_answered or limits.paused:
        return
    if turn.is_paused("submit"):
        until = turn.clock(plan.pauses["submit"].until_s)
        turn.print_once("growth", f"no lease is held, and the scheduler takes no more; again at {until}")
        return
    lengths = sorted(limits.lease_lengths_s)
    length_s = next((length for length in reversed(lengths) if length <= room.most_s), lengths[0])
    plan.arrays += 1
    reason = f"{count(plan.goal)} wanted, and no lease is held: {plan.why}"
    turn.decide(SubmitArray(plan.arrays, limits.array_leases, length_s), reason)
