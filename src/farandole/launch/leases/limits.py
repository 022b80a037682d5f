"""Limits of the policy of leases: all thresholds and bounds.

>>> limits = LeaseLimits(max_np=16, budget_node_hours=200.0)
>>> limits.growth_at, limits.most_pending
(1.25, 2)

A policy file has the same names with hyphens; ``policy_file.py`` reads it.

Hours of the day in which leases may run.

>>> hours = open_hours(["20-8"])
>>> 23 in hours, 7 in hours, 8 in hours
(True, True, False)
>>> closes_s(hours, now_s=23 * 3600, utc_offset_s=0) / 3600
32.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Literal, final

import msgspec

from farandole.errors import SettingsError
from farandole.launch.leases.rules import LeaseRule

DAY = 24
HOUR_S = 3600.0


def open_hours(windows: Iterable[str]) -> frozenset[int]:
    """Hours of ``FROM-TO`` texts; without any text, the whole day. Raises ``SettingsError`` for an invalid text."""
    return _hours(tuple(windows))


@lru_cache(maxsize=64)
def _hours(windows: tuple[str, ...]) -> frozenset[int]:
    hours: set[int] = set()
    for text in windows:
        found = re.fullmatch(r"\s*(\d\d?)\s*-\s*(\d\d?)\s*", text)
        begin, end = (int(found[1]), int(found[2])) if found else (-1, -1)
        if not 0 <= begin < DAY or not 0 <= end <= DAY or begin == end:
            raise SettingsError(f"{text!r} is no window of hours: write FROM-TO in hours of the day, as in '20-8'")
        hours |= {(begin + i) % DAY for i in range((end - begin) % DAY or DAY)}
    return frozenset(hours) or frozenset(range(DAY))


def windows_of(hours: Collection[int]) -> tuple[str, ...]:
    """``FROM-TO`` texts of hours, the inverse of ``open_hours``.

    >>> windows_of({22, 23, 0, 1, 12})
    ('12-13', '22-2')
    """
    if len(set(hours)) == DAY:
        return ()
    found = []
    for begin in sorted(hours):
        if (begin - 1) % DAY not in hours:
            length = next(i for i in range(1, DAY + 1) if (begin + i) % DAY not in hours)
            found.append(f"{begin}-{(begin + length) % DAY or DAY}")
    return tuple(found)


def closes_s(hours: frozenset[int], now_s: float, utc_offset_s: float) -> float:
    """Time at which the current window closes: infinite if all hours are open, ``now_s`` if none is open now."""
    if len(hours) == DAY:
        return math.inf
    local = math.floor((now_s + utc_offset_s) / HOUR_S)
    if local % DAY not in hours:
        return now_s
    until = next(i for i in range(1, DAY + 1) if (local + i) % DAY not in hours)
    return (local + until) * HOUR_S - utc_offset_s


@final
class LeaseLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Bounds and thresholds of one run. 0 means no bound only where the line says so."""

    # -- bounds: never exceeded, even if a user orders it ------------------------------------------------------------
    min_np: int = 1
    """Fewest workers, including the leader's. Only the end of a lease, the budget or the hours may go below."""
    max_np: int = 0
    """Most workers (0: no bound)."""
    most_leases: int = 16
    """Most leases at one time, each counted from its release to its end."""
    most_nodes: int = 0
    """Most nodes of all leases at one time (0: no bound)."""
    most_pending: int = 2
    """Most leases waiting in the queue."""
    budget_node_hours: float = 0.0
    """Most node-hours of the run, including those that its leases can still use (0: no bound)."""
    hours: tuple[str, ...] = ()
    """Hours of the day, in local time, in which leases may run: ``["20-8"]`` (none: all)."""
    partitions: tuple[str, ...] = ()
    """Partitions that leases may be submitted to (none: any). For the script; no decision depends on it."""
    paused: bool = False
    """Release and submit no leases, even if a user orders it; running leases go on."""

    # -- leases --------------------------------------------------------------------------------------------------------
    lease_workers: int = 1
    """Workers of one lease."""
    lease_nodes: int = 1
    """Nodes of one lease."""
    lease_lengths_s: tuple[float, ...] = (3600.0,)
    """Time limits of leases: the policy takes the longest that the bounds allow, held leases of that length first."""
    array_leases: int = 16
    """Leases in one array."""

    # -- growth by policy ----------------------------------------------------------------------------------------------
    batch: Literal["fixed", "grow"] = "fixed"
    """``fixed``: the global batch is constant, so the noise scale sets no bound. ``grow``: the batch per worker is."""
    growth_at: float = 1.25
    """Grow only if the target is at least this multiple of the workers present or requested."""
    advice_apart_s: float = 120.0
    """Grow only after two pieces of advice at least this far apart have agreed."""
    growth_per_advice: float = 4.0
    """Most workers after one growth, as a multiple of the workers that train."""
    worth_pauses: float = 5.0
    """Least time saved, as a multiple of the pauses of the other workers: one pause for each worker that joins."""
    worth_warmups: float = 10.0
    """Least time of a lease, as a multiple of its warm-up."""

    # -- shrinking by policy -------------------------------------------------------------------------------------------
    shrink_at: float = 0.67
    """Shrink only if the target is at most this multiple of the workers present."""
    shrink_after_s: float = 600.0
    """Shrink only after the advice, or what a search can use, has been that low for this time."""
    rules: tuple[LeaseRule, ...] = ()
    """Rules of the user; each takes effect at once when its condition first holds."""

    # -- hysteresis ----------------------------------------------------------------------------------------------------
    opposite_s: float = 600.0
    """Least time between growing and shrinking by policy, in either order."""
    changes_per_hour: int = 6
    """Most changes of the size by policy in an hour."""

    # -- ends of leases ------------------------------------------------------------------------------------------------
    leave_steps: float = 2.0
    leave_s: float = 30.0
    """A lease leaves before its job ends by ``leave-steps`` times the longest recent step plus ``leave-s`` seconds."""
    wait_quantile: float = 0.8
    """A successor is released earlier than the end of a lease by this quantile of the queue waits plus a warm-up."""
    successor_share: float = 0.5
    """A successor is not released before this share of the lease is over, however long earlier queue waits were."""

    # -- failures ------------------------------------------------------------------------------------------------------
    breaker_leases: int = 3
    """After this many leases in a row that never became members, the policy pauses growth."""
    pauses_s: tuple[float, ...] = (60.0, 900.0, 1800.0, 3600.0)
    """Pauses after the first, second, ... refusal of the scheduler in a row, and after ``breaker-leases`` failures."""
    order_s: float = 3600.0
    """No growth for this time after a user or an administrator cancelled or held a queued lease."""

    # -- the leader ----------------------------------------------------------------------------------------------------
    lead_patience_s: float = 0.0
    """Leases without a leader keep their workers this long, for the next leader (0: they end). Read at the start."""

    # -- looks at the queue --------------------------------------------------------------------------------------------
    look_pending_s: float = 60.0
    look_s: float = 300.0
    """Time between looks at the queue: ``look-pending-s`` while a lease waits there, otherwise ``look-s``."""
    told_pending_s: float = 600.0
    """A lease that has waited this long in the queue is reported, once."""

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
        """Pause after ``times`` failures in a row."""
        return self.pauses_s[min(max(times, 1), len(self.pauses_s)) - 1]

    def closes_s(self, now_s: float, utc_offset_s: float) -> float:
        """Time at which the allowed hours end; at most ``now_s`` outside of them."""
        return closes_s(open_hours(self.hours), now_s, utc_offset_s) if self.hours else math.inf


def _mistakes(limits: LeaseLimits) -> list[str]:
    """Error texts for invalid values."""
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
