"""Policy of leases: from an observation to decisions, without any I/O.

    plan = LeasePlan()
    plan, decisions = decide(limits, plan, seen)        # after each change, and at ``plan.next_s``
    for decision in decisions:
        log(decision.reason)
        obey(decision.action)                           # see actions.py

The caller passes observations, and carries out decisions in order. An observation need not show the effect of a
decision at once: the plan remembers it, and decides nothing twice. The caller passes each order and refusal once.

The same limits, plan and observations give the same decisions, whatever the order in which the leases are listed;
``journal.py`` records the calls and replays them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from farandole.largebatch.advice import duration
from farandole.launch.leases.actions import LeaseDecision, LookAtNodes, LookAtQueue, SetNice
from farandole.launch.leases.apply_orders import apply_orders
from farandole.launch.leases.grow import grow
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import LeaseObservation
from farandole.launch.leases.policy_context import PolicyContext, by_number, count
from farandole.launch.leases.policy_state import LeasePlan
from farandole.launch.leases.shrink import lead_s, mark_expiring, shrink
from farandole.launch.leases.target_size import set_target_size


def decide(limits: LeaseLimits, plan: LeasePlan, seen: LeaseObservation) -> tuple[LeasePlan, list[LeaseDecision]]:
    """Decide on the leases of a run; returns the plan for the next call, and the decisions to carry out now."""
    turn = PolicyContext(limits, plan, seen)
    apply_orders(turn)
    turn.sort()
    mark_expiring(turn)
    set_target_size(turn)
    shrink(turn)
    if turn.closes_s > turn.now_s + turn.margin_s:
        grow(turn)
    _lower_priority(turn)
    _tell_of_waits(turn)
    _look(turn)
    _look_at_nodes(turn)
    moments = [at_s for at_s in _moments(turn) if turn.now_s < at_s < math.inf]
    turn.plan.next_s = min(moments, default=0.0)
    return turn.plan, turn.decisions


def _lower_priority(turn: PolicyContext) -> None:
    """Lower the priority of waiting leases if a rule of the user sets a niceness."""
    nice = turn.plan.nice
    if nice:
        for lease in sorted(turn.pending, key=by_number):
            if turn.note(lease.job).nice < nice:
                turn.note(lease.job, nice=nice)
                turn.decide(SetNice(lease.job, nice), f"a rule holds: {turn.plan.fired[-1]}")


def _tell_of_waits(turn: PolicyContext) -> None:
    """Report leases that have waited long, once each."""
    for lease in sorted(turn.pending, key=by_number):
        note = turn.note(lease.job)
        waited_s = turn.now_s - note.asked_s
        if note.asked_s and not note.spoken and waited_s >= turn.limits.told_pending_s:
            turn.note(lease.job, spoken=True)
            when = f"is estimated to start at {turn.clock(lease.starts_s)}" if lease.starts_s else "has no estimate yet"
            goes_on = f"the run goes on with {count(turn.seen.have)}"
            turn.print_once("wait", f"{lease.job} has waited for {duration(waited_s)} and {when}; {goes_on}")


def _look_due_s(turn: PolicyContext) -> float:
    """Time of the next look at the queue; infinite without leases."""
    if not turn.leases and not turn.pending:
        return math.inf
    interval_s = turn.limits.look_pending_s if turn.waiting else turn.limits.look_s
    return max(turn.plan.looked_s, turn.now_s - turn.seen.looked_s) + interval_s


def _look(turn: PolicyContext) -> None:
    if _look_due_s(turn) <= turn.now_s:
        turn.plan.looked_s = turn.now_s
        waits = count(len(turn.waiting), "lease")
        turn.decide(LookAtQueue(), f"{waits} in the queue; the last look was {duration(turn.seen.looked_s)} ago")


def _look_at_nodes(turn: PolicyContext) -> None:
    """Look from time to time for nodes that are being drained: Slurm does not notify jobs."""
    if not turn.running:
        turn.plan.nodes_looked_s = turn.now_s
    elif turn.plan.nodes_looked_s + turn.limits.look_s <= turn.now_s:
        turn.plan.nodes_looked_s = turn.now_s
        turn.decide(LookAtNodes(), f"{count(len(turn.running), 'lease')} may have a node that is being drained")


def _moments(turn: PolicyContext) -> Iterator[float]:
    """Times at which a decision may be due without a new observation."""
    plan, limits, running = turn.plan, turn.limits, turn.running
    yield _look_due_s(turn)
    yield turn.closes_s - turn.margin_s
    if running:
        leave_s = min((lease.ends_s for lease in running if lease.ends_s), default=math.inf) - turn.margin_s
        yield leave_s
        yield plan.nodes_looked_s + limits.look_s
        yield leave_s - lead_s(turn)
        for share in {(1.0 - limits.successor_share) * length for length in limits.lease_lengths_s}:
            yield leave_s - share
    yield plan.frozen_s
    yield from (pause.until_s for pause in plan.pauses.values())
