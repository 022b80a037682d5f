"""Allotment of a pool's workers to the trials of a search. Pure.

    allot([Running(3, rung=2, value=0.1)], waiting=0, capacity=4, limits=(1, 4))
    # [Allotment(number=3, size=4, reason="nothing waits: ...")], 0 trials to begin

Waiting trials come first, each with the minimum number of workers, because more trials find more than faster trials.
When no trial waits, running trials share the remaining workers: first those on the highest rung, and there the best
value first. So winners get the workers of losers. Trials give these workers back when a trial waits again.

A trial that has measured its gradient noise gets no more workers than its noise scale is worth (McCandlish et al., An
Empirical Model of Large-Batch Training, 2018, section 2.2): from a batch as large as the noise scale on, twice the
samples in a step save few steps. Other trials get the workers that it does not need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from farandole.search.rungs import sound


@final
class Noise(NamedTuple):
    """Upper bound of a trial's noise scale, in samples, and the number of samples of one worker in a step.

    >>> Noise(high=1000.0, batch=256.0).worth
    4
    """

    high: float
    batch: float

    @property
    def worth(self) -> float:
        """Fewest workers whose batch together is as large as the noise scale; more would not help."""
        is_known = 0 <= self.high < math.inf and 0 < self.batch < math.inf
        return max(1, math.ceil(self.high / self.batch)) if is_known else math.inf


@final
class Running(NamedTuple):
    """Running trial: the number of rungs that it has passed, and its value at the last rung (to be minimised).

    ``noise`` is ``None`` if it has measured no noise.
    """

    number: int
    rung: int = 0
    value: float = math.inf
    noise: Noise | None = None


@final
class Allotment(NamedTuple):
    """Number of workers for a trial, and the reason."""

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
    """Shares of the ``running`` trials, number of the ``waiting`` trials that may begin, and why not more.

    ``capacity``: number of all workers of the pool. ``limits``: minimum and maximum number of workers of one trial.
    """
    least = limits[0]
    spare = capacity - least * len(running)
    begin, why = _begin(waiting, spare, least, time or Time())
    if 0 < begin < waiting:
        why = f"{waiting - begin} trials wait for {least} workers each"
    elif waiting and not begin:
        why = why or f"{waiting} trials wait for {least} workers each"
    left = max(0, spare - begin * least) if begin == waiting or not _may_begin(time or Time()) else 0
    shares = []
    for each in sorted(running, key=_order):
        extra, reason = _extra(each, left, limits)
        left -= extra
        shares.append(Allotment(each.number, least + extra, reason or why or "no worker is to spare"))
    return sorted(shares), begin, why


def demand(running: Sequence[Running], waiting: int, limits: tuple[int, int], time: Time | None = None) -> int:
    """Number of workers that the trials could use, if there were any number of them.

    >>> demand([Running(3), Running(4, noise=Noise(high=1000.0, batch=500.0))], waiting=2, limits=(1, 4))
    14
    """
    least, most = limits
    begin = waiting if _may_begin(time or Time()) else 0
    return sum(least + _extra(each, most - least, limits)[0] for each in running) + most * begin


def _extra(trial: Running, left: int, limits: tuple[int, int]) -> tuple[int, str]:
    """Number of the ``left`` workers that a trial gets beyond its minimum, and the reason; "" if none are left."""
    least, most = limits
    worth = math.inf if trial.noise is None else max(0, trial.noise.worth - least)
    extra = int(min(left, most - least, worth))
    if trial.noise is not None and extra == worth < min(left, most - least):
        high, batch = trial.noise
        return (
            extra,
            f"more would not help: its noise scale is {high:.0f} samples at most, and a worker takes {batch:g}",
        )
    return extra, f"nothing waits, and {extra} more workers are free" if extra else ""


def _order(trial: Running) -> tuple[int, float, int]:
    """Sort key that puts the best trial first."""
    return -trial.rung, sound(trial.value), trial.number


def _may_begin(time: Time) -> bool:
    return time.left_s >= time.first_rung_s


def _begin(waiting: int, spare: int, least: int, time: Time) -> tuple[int, str]:
    if not _may_begin(time):
        return 0, f"{time.left_s:.0f} s are left, and a trial takes {time.first_rung_s:.0f} s to its first rung"
    return max(0, min(waiting, spare // least)), ""
