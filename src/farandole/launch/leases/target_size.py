"""Target size of the policy of leases: with how many workers to train, and why.

Orders take effect at once; advice, which rests on a measured noise scale, only after it stays similar for a while.
"""

from __future__ import annotations

import math

from farandole.largebatch.advice import significant
from farandole.launch.leases.observation import LeaseAdvice
from farandole.launch.leases.policy_context import PolicyContext, count

HOUR_S = 3600.0


def set_target_size(turn: PolicyContext) -> None:
    """Write the goal into the plan, with its reason."""
    plan, limits, lasting = turn.plan, turn.limits, turn.lasting
    if not plan.goal:
        plan.goal, plan.why = max(limits.min_np, lasting), "the beginning"
        plan.reached = lasting
    plan.changes_s = tuple(at_s for at_s in plan.changes_s if at_s > turn.now_s - HOUR_S)
    _fire_rules(turn)
    if plan.stopped:
        _set(turn, 0, "the training is over")
        return
    if plan.ordered >= 0:
        _set(turn, plan.ordered, plan.ordered_why or f"{count(plan.ordered)} ordered")
    _take_advice(turn)
    if plan.cap and plan.ordered < 0 and plan.goal > plan.cap:
        _set(turn, plan.cap, plan.fired[-1])
    if turn.volunteers:
        _set(turn, max(plan.goal, lasting), "leases were released by somebody")
        plan.ordered = plan.goal if plan.ordered >= 0 else -1
        plan.grown_s = turn.now_s
    _keep_bounds(turn)
    plan.reached = min(plan.goal, max(plan.reached, turn.lasting))


def _set(turn: PolicyContext, goal: int, why: str) -> None:
    if goal != turn.plan.goal:
        turn.plan.goal, turn.plan.why, turn.plan.reached = goal, why, turn.lasting


def _keep_bounds(turn: PolicyContext) -> None:
    """Keep the goal between ``min_np`` and ``max_np``; print it if a user ordered another size."""
    plan, limits = turn.plan, turn.limits
    if plan.goal < limits.min_np:
        if plan.ordered >= 0:
            turn.print_once("order", f"{count(plan.ordered)} ordered, and min-np is {limits.min_np}")
        _set(turn, limits.min_np, f"min-np is {limits.min_np}")
    elif plan.goal > limits.most_workers:
        if plan.ordered >= 0:
            turn.print_once("order", f"{count(plan.ordered)} ordered, and max-np is {limits.max_np}")
        _set(turn, limits.max_np, f"max-np is {limits.max_np}")


def _fire_rules(turn: PolicyContext) -> None:
    """Apply the rules whose condition holds for the first time."""
    plan = turn.plan
    for rule in turn.limits.rules:
        text = str(rule)
        if text in plan.fired or not rule.holds(turn.seen.progress.metrics):
            continue
        plan.fired += (text,)
        np, nice = rule.effect()
        if np is not None:
            plan.cap = min(np, plan.cap or np)
            plan.ordered = min(plan.ordered, np)
        plan.nice = max(plan.nice, nice or 0)
        turn.print_once("rule", f"a rule holds from now on: {text}")


def _take_advice(turn: PolicyContext) -> None:
    """Use new advice; the goal follows after the advice was the same for long enough."""
    plan, advice = turn.plan, turn.seen.progress.advice
    if advice is None or advice.at_s <= plan.advice_s:
        return
    plan.advice_s = advice.at_s
    if advice.refusal:
        plan.grow_since_s = plan.shrink_since_s = 0.0
        plan.target = 0
        if plan.ordered < 0:
            _set(turn, min(plan.goal, max(plan.reached, turn.limits.min_np)), advice.refusal)
            turn.print_once("advice", f"the number of workers stays: {advice.refusal}")
        return
    turn.plan.said.pop("advice", None)
    plan.target = target = _target(turn, advice)
    base = max(plan.goal, turn.lasting, 1)
    if target < turn.limits.growth_at * base or not _pays(turn, advice, target - base):
        plan.grow_since_s = 0.0
    if target > turn.limits.shrink_at * base:
        plan.shrink_since_s = 0.0
    if target >= turn.limits.growth_at * base and _pays(turn, advice, target - base):
        _grow(turn, advice, target)
    elif target <= turn.limits.shrink_at * base:
        _shrink(turn, advice, target)


def _target(turn: PolicyContext, advice: LeaseAdvice) -> int:
    """The size that the advice recommends, within the bounds that hold now."""
    limits, seen, batch = turn.limits, turn.seen, turn.seen.progress.batch
    target = min(
        advice.workers,
        limits.growth_per_advice * max(seen.have, 1),
        limits.most_workers,
        seen.own + limits.most_leases * limits.lease_workers,
    )
    if limits.batch == "grow" and batch > 0:
        target = min(target, math.floor(advice.low / batch))
    if turn.plan.cap:
        target = min(target, turn.plan.cap)
    return max(int(target), limits.min_np)


def _pays(turn: PolicyContext, advice: LeaseAdvice, more: int) -> bool:
    """Whether ``more`` workers save more time than the others lose in pauses, by a factor ``worth_pauses``."""
    return advice.saves_s >= turn.limits.worth_pauses * turn.seen.progress.pause_s * more


def _grow(turn: PolicyContext, advice: LeaseAdvice, target: int) -> None:
    plan, limits = turn.plan, turn.limits
    first = not plan.grow_since_s
    plan.grow_target = target if first else min(plan.grow_target, target)
    if first:
        plan.grow_since_s = advice.at_s
        return
    if advice.at_s - plan.grow_since_s < limits.advice_apart_s or not _may_change(turn, plan.shrunk_s):
        return
    if plan.grow_target >= limits.growth_at * max(plan.goal, turn.lasting, 1):
        low = f"the noise scale is {significant(advice.low)} samples at least"
        _change(turn, plan.grow_target, f"advice has agreed on {count(plan.grow_target)}: {low}")


def _shrink(turn: PolicyContext, advice: LeaseAdvice, target: int) -> None:
    plan, limits, have = turn.plan, turn.limits, turn.seen.have
    first = not plan.shrink_since_s
    plan.shrink_target = target if first else max(plan.shrink_target, target)
    if first:
        plan.shrink_since_s = advice.at_s
    if advice.at_s - plan.shrink_since_s < limits.shrink_after_s or not _may_change(turn, plan.grown_s):
        return
    target = plan.shrink_target
    goal = target if target <= limits.shrink_at * have else max(target, min(plan.goal, have))
    why = f"advice has asked for no more than {count(target)} for {limits.shrink_after_s / 60:.0f} min"
    _change(turn, goal, why)


def _may_change(turn: PolicyContext, opposite_s: float) -> bool:
    """Whether advice may change the goal; the last change in the opposite direction was at ``opposite_s``."""
    plan, limits = turn.plan, turn.limits
    return (
        plan.ordered < 0
        and not plan.held
        and turn.now_s >= plan.frozen_s
        and (not opposite_s or turn.now_s - opposite_s >= limits.opposite_s)
        and len(plan.changes_s) < limits.changes_per_hour
    )


def _change(turn: PolicyContext, goal: int, why: str) -> None:
    """Change the goal because of advice."""
    plan = turn.plan
    plan.grow_since_s = plan.shrink_since_s = 0.0
    if goal != plan.goal:
        plan.changes_s += (turn.now_s,)
        _set(turn, goal, why)
