"""Shrinking by the policy of leases: which leases leave now, or are cancelled, and why.

First the leases that must go: their job ends, their node is drained, the hours are over, or the budget is spent;
``min_np`` does not hold for these. Then leases beyond the target size; this step keeps ``min_np``. An idle lease leaves
first, then the lease whose job ends soonest, then the newest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.policy_context import (
    PolicyContext,
    count,
    idle_first,
    newest_first,
    soonest_first,
    workers,
)


def shrink(turn: PolicyContext) -> None:
    """Decide which leases leave or are cancelled."""
    if turn.plan.stopped:
        _shed_all(turn, "the training is over", [*turn.held, *turn.barred])
        return
    if turn.closes_s - turn.margin_s <= turn.now_s:
        _shed_all(turn, f"leases may run in the hours {', '.join(turn.limits.hours)} only", ())
        return
    _end_in_time(turn)
    _leave_drained(turn)
    _keep_bounds(turn)
    _keep_budget(turn)
    mark_expiring(turn)
    _make_room(turn)
    _shed_surplus(turn)


def _shed_all(turn: PolicyContext, reason: str, others: Iterable[Lease]) -> None:
    for lease in sorted([*turn.pending, *others], key=newest_first):
        turn.cancel(lease, reason)
    for lease in sorted(turn.running, key=soonest_first):
        turn.end(lease, reason)


def _end_in_time(turn: PolicyContext) -> None:
    """End leases shortly before their jobs end, so that no step is lost."""
    latest_s = turn.now_s + turn.margin_s
    for lease in sorted((each for each in turn.running if 0 < each.ends_s <= latest_s), key=soonest_first):
        turn.end(lease, f"its job ends at {turn.clock(lease.ends_s)}")


def _leave_drained(turn: PolicyContext) -> None:
    """End leases on nodes that are being drained: Slurm starts no job there, so a successor gets another node."""
    for lease in sorted((each for each in turn.running if each.drained), key=soonest_first):
        turn.end(lease, f"its node {lease.drained} is being drained")


def _keep_bounds(turn: PolicyContext) -> None:
    """Return below bounds that are exceeded because they were lowered, or because a user released leases."""
    limits = turn.limits

    def passed() -> str:
        if turn.lasting > limits.most_workers:
            return f"max-np is {limits.max_np}"
        if len(turn.pending) + len(turn.running) > limits.most_leases:
            return f"most-leases is {limits.most_leases}"
        if limits.most_nodes and sum(map(turn.nodes, turn.pending + turn.running)) > limits.most_nodes:
            return f"most-nodes is {limits.most_nodes}"
        return f"most-pending is {limits.most_pending}" if len(turn.pending) > limits.most_pending else ""

    while (turn.pending or turn.running) and (reason := passed()):
        if not _drop_one(turn, reason):
            break


def _drop_one(turn: PolicyContext, reason: str) -> bool:
    """Drop the cheapest lease, preferably waiting, else not yet training; return whether there was one."""
    if turn.pending:
        before = len(turn.pending)
        turn.cancel(min(turn.pending, key=newest_first), reason)
        return len(turn.pending) < before
    victims = [lease for lease in turn.young if lease.job not in turn.expiring] or turn.young
    leaving = min(victims, key=newest_first) if victims else min(turn.members, key=idle_first, default=None)
    if leaving is not None:
        turn.end(leaving, reason)
    return leaving is not None


def _keep_budget(turn: PolicyContext) -> None:
    """Return to the budget: leases told to end count no more, and only leases with a known end are ended."""
    budget = turn.limits.budget_node_hours
    if not budget:
        return
    reason = f"the budget is {budget:g} node-hours"
    while turn.unspent_node_hours(turn.pending + turn.running) < -1e-9:
        certain = [lease for lease in turn.running if lease.ends_s]
        if turn.pending:
            if not _drop_one(turn, reason):
                return
        elif certain:
            turn.end(min(certain, key=idle_first), reason)
        else:
            return


# -- successors --------------------------------------------------------------------------------------------------------


def mark_expiring(turn: PolicyContext) -> None:
    """Mark leases whose successor is due. A mark stays: otherwise a shorter wait would give a lease two successors."""
    early_s = lead_s(turn)
    latest_s = turn.now_s + turn.margin_s + early_s
    for lease in turn.running:
        if 0 < lease.ends_s <= latest_s and lease.job not in turn.expiring:
            share = (1.0 - turn.limits.successor_share) * turn.length_s(lease)
            if lease.ends_s - turn.margin_s - min(early_s, share) <= turn.now_s:
                turn.note(lease.job, expiring=True)
                turn.expiring.add(lease.job)


def lead_s(turn: PolicyContext) -> float:
    """Expected time from the release of a lease until it trains: a quantile of past and current waits, and warm-up."""
    waits = list(turn.plan.waits_s)
    known = max(waits, default=0.0)
    # A current wait is a lower bound; one shorter than the longest past wait is no information.
    ages = (turn.now_s - asked_s for lease in turn.pending if (asked_s := turn.note(lease.job).asked_s))
    waits = sorted(waits + [age for age in ages if age > known])
    wait_s = waits[max(0, math.ceil(turn.limits.wait_quantile * len(waits)) - 1)] if waits else 0.0
    return wait_s + turn.seen.progress.warmup_s


def expiring(turn: PolicyContext) -> list[Lease]:
    """Running leases whose successor is due; the first to end comes first."""
    return sorted((lease for lease in turn.running if lease.job in turn.expiring), key=soonest_first)


def _make_room(turn: PolicyContext) -> None:
    """End leases whose successors train, or whose successors would exceed ``max_np`` by joining."""
    joining = [lease for lease in turn.young if lease.phase is LeasePhase.WARMING]
    for lease in expiring(turn):
        trains = lease in turn.members
        after = turn.seen.own + workers(turn.members) - lease.workers * trains
        if trains and after >= turn.plan.goal:
            turn.end(lease, "its successor trains")
        elif trains and turn.seen.own + workers(turn.members + joining) > turn.limits.most_workers:
            turn.end(lease, f"its successor runs, and max-np is {turn.limits.max_np}")


# -- size --------------------------------------------------------------------------------------------------------------


def _shed_surplus(turn: PolicyContext) -> None:
    """Shrink to the goal, but never below ``min_np`` or the goal."""
    goal, before = turn.plan.goal, len(turn.decisions)
    for lease in sorted(turn.pending, key=newest_first):
        if turn.lasting - lease.workers >= goal:
            turn.cancel(lease, _why(turn))
    if turn.lasting > goal:
        for lease in sorted(turn.young, key=newest_first) + sorted(turn.members, key=idle_first):
            trains = lease in turn.members
            left = turn.training - lease.workers * trains
            stays = turn.lasting - lease.workers * (lease.job not in turn.expiring)
            if stays >= goal and (not trains or left >= min(turn.limits.min_np, turn.training)):
                turn.end(lease, _why(turn))
            if turn.lasting <= goal:
                break
    if len(turn.decisions) > before:
        turn.plan.shrunk_s = turn.now_s


def _why(turn: PolicyContext) -> str:
    return f"no more than {count(turn.plan.goal)} wanted: {turn.plan.why}"
