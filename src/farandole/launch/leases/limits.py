"""Limits that the policy of leases decides by: every threshold and every bound, once.

>>> limits = LeaseLimits(max_np=16, budget_node_hours=200.0)
>>> limits.growth_at, limits.most_pending, limits.open_at(0.0, 0.0)
(1.25, 2, True)

A policy file has the same names with hyphens; ``policy_file.py`` reads it.
"""

from __future__ import annotations

import math
from typing import Literal, final

import msgspec

from farandole.errors import SettingsError
from farandole.launch.leases.hours import closes_s, open_hours
from farandole.launch.leases.rules import LeaseRule


@final
class LeaseLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Bounds and thresholds of one run. Where 0 stands for no bound, its line says so."""

    # -- bounds: never passed, whoever asks --------------------------------------------------------------------------
    min_np: int = 1
    """Fewest workers, those of the lead among them. Only the end of a lease, the budget or the hours go below."""
    max_np: int = 0
    """Most workers (0: no bound)."""
    most_leases: int = 16
    """Most leases at one time, from their release until their end."""
    most_nodes: int = 0
    """Most nodes of all leases at one time (0: no bound)."""
    most_pending: int = 2
    """Most leases that wait in the queue."""
    budget_node_hours: float = 0.0
    """Most node-hours of the run, with what its leases can still use (0: no bound)."""
    hours: tuple[str, ...] = ()
    """Hours of the day, in local time, in which leases may run: ``["20-8"]`` (none: all)."""
    partitions: tuple[str, ...] = ()
    """Partitions that leases may be submitted to (none: any). For the script; no decision depends on it."""
    paused: bool = False
    """Release and submit nothing, whoever asks; what runs goes on."""

    # -- leases --------------------------------------------------------------------------------------------------------
    lease_workers: int = 1
    """Workers that a lease brings."""
    lease_nodes: int = 1
    """Nodes that a lease takes."""
    lease_lengths_s: tuple[float, ...] = (3600.0,)
    """Time limits of leases: the longest one that a bound allows is taken, held ones of that length first."""
    array_leases: int = 16
    """Leases in one array."""

    # -- growth by policy ----------------------------------------------------------------------------------------------
    batch: Literal["fixed", "grow"] = "fixed"
    """``fixed``: the global batch stays, so the noise scale sets no bound. ``grow``: that of each worker stays."""
    growth_at: float = 1.25
    """Least target, in multiples of the workers that are there or asked for."""
    advice_apart_s: float = 120.0
    """Two pieces of advice that far apart must agree."""
    growth_per_advice: float = 4.0
    """Most workers after a growth, in multiples of those that train."""
    worth_pauses: float = 5.0
    """Least saving, in multiples of the pauses of the others: one for every worker that comes."""
    worth_warmups: float = 10.0
    """Least time that a lease has left, in multiples of its warm-up."""

    # -- shrinking by policy -------------------------------------------------------------------------------------------
    shrink_at: float = 0.67
    """Highest target, in multiples of the workers that are there."""
    shrink_after_s: float = 600.0
    """The advice must have been so low for so long."""
    rules: tuple[LeaseRule, ...] = ()
    """Rules of the user, each obeyed at once when its condition first holds."""

    # -- hysteresis ----------------------------------------------------------------------------------------------------
    opposite_s: float = 600.0
    """Least time between a growth and a shrinking by policy, either way."""
    changes_per_hour: int = 6
    """Most new sizes by policy in an hour."""

    # -- ends ----------------------------------------------------------------------------------------------------------
    leave_steps: float = 2.0
    leave_s: float = 30.0
    """A lease leaves so many of the longest steps, and so many seconds, before its job ends."""
    wait_quantile: float = 0.8
    """Successors are released earlier by this quantile of the waits and a warm-up."""
    successor_share: float = 0.5
    """... but not before this share of the lease is over: waits of yesterday must not make leases chase each other."""

    # -- what goes wrong -----------------------------------------------------------------------------------------------
    breaker_leases: int = 3
    """After so many leases in a row that never became members nothing grows."""
    pauses_s: tuple[float, ...] = (60.0, 900.0, 1800.0, 3600.0)
    """Pauses after the first refusal of the scheduler, the second ..., and after the breaker."""
    order_s: float = 3600.0
    """No growth for so long after somebody has cancelled a lease in the queue, or has held one."""

    # -- the lead ------------------------------------------------------------------------------------------------------
    lead_patience_s: float = 0.0
    """Leases whose lead is gone keep their workers for so long, for the next lead (0: they end). Read at the start."""

    # -- looks ---------------------------------------------------------------------------------------------------------
    look_pending_s: float = 60.0
    look_s: float = 300.0
    """Time between looks at the queue while something waits there, and else."""
    told_pending_s: float = 600.0
    """A lease that has waited for so long is spoken of, once."""

    def __post_init__(self) -> None:
        wrong = next((text for text in _mistakes(self)), None)
        if wrong:
            raise SettingsError(wrong)

    @property
    def most_workers(self) -> float:
        """``max_np``, or infinity."""
        return self.max_np or math.inf

    @property
    def longest_s(self) -> float:
        """The longest time limit of a lease."""
        return max(self.lease_lengths_s)

    def pause_s(self, times: int) -> float:
        """The pause after a thing has failed so many times in a row."""
        return self.pauses_s[min(max(times, 1), len(self.pauses_s)) - 1]

    def closes_s(self, now_s: float, utc_offset_s: float) -> float:
        """Time at which the hours are over that leases may run in; not after ``now_s`` where they are."""
        return closes_s(open_hours(self.hours), now_s, utc_offset_s) if self.hours else math.inf

    def open_at(self, now_s: float, utc_offset_s: float) -> bool:
        """Whether leases may run now."""
        return self.closes_s(now_s, utc_offset_s) > now_s


def _mistakes(limits: LeaseLimits) -> list[str]:
    """Sentences on what cannot be meant."""
    least = {"min-np": 0, "max-np": 0, "most-leases": 0, "most-nodes": 0, "most-pending": 0, "budget-node-hours": 0,
             "lease-workers": 1, "lease-nodes": 1, "array-leases": 1, "growth-at": 1, "growth-per-advice": 1,
             "changes-per-hour": 0, "breaker-leases": 1, "look-pending-s": 1, "look-s": 1}  # fmt: skip
    found = [
        f"{key} = {value}: write {bound} or more"
        for key, bound in least.items()
        if (value := getattr(limits, key.replace("-", "_"))) < bound
    ]
    found += [
        f"{key} = {value}: write a number from 0 to 1"
        for key in ("shrink-at", "wait-quantile", "successor-share")
        if not 0 <= (value := getattr(limits, key.replace("-", "_"))) <= 1
    ]
    found += [
        f"{key.replace('_', '-')} = {value}: write a finite number; 0 is no bound where there need be none"
        for key in limits.__struct_fields__
        if isinstance(value := getattr(limits, key), float) and not math.isfinite(value)
    ]
    for key in ("lease-lengths-s", "pauses-s"):
        values = getattr(limits, key.replace("-", "_"))
        if not values or not all(0 < value < math.inf for value in values):
            found.append(f"{key} = {list(values)}: write seconds above 0, as in {key} = [3600]")
    if limits.max_np and limits.max_np < limits.min_np:
        found.append(f"max-np = {limits.max_np} is below min-np = {limits.min_np}")
    open_hours(limits.hours)
    for rule in limits.rules:
        LeaseRule.parse(rule.when, rule.then)
    return found
