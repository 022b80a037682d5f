"""Sizes of trials: the allotment of a pool's workers to the trials of a search. Pure.

    allot([Running(3, rung=2, value=0.1)], waiting=0, capacity=4, limits=(1, 4))
    # [Allotment(number=3, size=4, reason="nothing waits: ...")], 0 trials to begin

Trials that wait come first, each with the fewest workers that one may have: breadth finds more than speed. When none
waits, those that run share what is left, the highest rung first and in it the best: so winners get the workers of
losers. Workers that are lent in this way come back when a trial waits again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final


@final
class Running(NamedTuple):
    """Trial that runs: the number of rungs behind it, and its value at the last of them (to be minimised)."""

    number: int
    rung: int = 0
    value: float = math.inf


@final
class Allotment(NamedTuple):
    """Number of workers that a trial is to have, and why."""

    number: int
    size: int
    reason: str


@final
class Time(NamedTuple):
    """Time until the search must end, and the time that a trial takes to its first rung (0: not known), in seconds."""

    left_s: float = math.inf
    first_rung_s: float = 0.0


def allot(
    running: Sequence[Running], waiting: int, capacity: int, limits: tuple[int, int], time: Time | None = None
) -> tuple[list[Allotment], int, str]:
    """Shares of the ``running`` trials, how many of the ``waiting`` ones may begin, and why not more of them.

    ``capacity`` counts all workers of the pool, ``limits`` the fewest and the most of one trial.
    """
    least, most = limits
    spare = capacity - least * len(running)
    begin, why = _begin(waiting, spare, least, time or Time())
    if 0 < begin < waiting:
        why = f"{waiting - begin} trials wait for {least} workers each"
    elif waiting and not begin:
        why = why or f"{waiting} trials wait for {least} workers each"
    left = max(0, spare - begin * least) if begin == waiting or not _may_begin(time or Time()) else 0
    shares = []
    for each in sorted(
        running, key=lambda one: (-one.rung, one.value if one.value == one.value else math.inf, one.number)
    ):
        extra = min(left, most - least)
        left -= extra
        reason = f"nothing waits, and {extra} more workers are free" if extra else why or "no worker is to spare"
        shares.append(Allotment(each.number, least + extra, reason))
    return sorted(shares), begin, why


def _order(trial: Running) -> tuple[int, float, int]:
    """Key by which the best trial comes first."""
    return -trial.rung, math.inf if math.isnan(trial.value) else trial.value, trial.number


def _may_begin(time: Time) -> bool:
    return time.left_s >= time.first_rung_s


def _begin(waiting: int, spare: int, least: int, time: Time) -> tuple[int, str]:
    if not _may_begin(time):
        return 0, f"{time.left_s:.0f} s are left, and a trial takes {time.first_rung_s:.0f} s to its first rung"
    return max(0, min(waiting, spare // least)), ""
