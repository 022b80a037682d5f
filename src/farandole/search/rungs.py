"""Rungs of a search: how long a trial trains before it must be better than others to go on. Pure.

    rungs = Rungs.of(least=1, most=27, reduction=3)         # levels 1, 3, 9, 27
    after_rung(rungs, standings, number=4)                  # (Next.PAUSE, "3rd of 5 at epoch 1; the best 1 goes on")
    promote(rungs, standings, is_more=True)                 # (7, "1st of 9 at epoch 3; the best 3 go on")

Asynchronous successive halving (Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020, algorithm 2):
of all trials that have reached a rung so far, the best ``1/reduction`` go on; no trial waits until a rung is full. A
trial that does not go on pauses, with its state in a checkpoint, and goes on later if others prove worse. Only the end
of the search makes it a loser. Values are minimised; a value that is not finite is worse than all others.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import msgspec

from farandole.errors import UsageError


@final
class Rungs(msgspec.Struct, frozen=True):
    """Levels in epochs, ascending; the last is the whole training. One in ``reduction`` trials goes on at each."""

    levels: tuple[int, ...]
    reduction: int

    @classmethod
    def of(cls, least: int, most: int, reduction: int = 3) -> Rungs:
        """Levels from ``least`` epochs, each ``reduction`` times the one before, to ``most``.

        >>> Rungs.of(2, 20, 3).levels
        (2, 6, 18, 20)
        """
        if not 1 <= least <= most:
            raise UsageError(f"min_epochs={least}, epochs={most}: give at least 1, and not more than epochs")
        if reduction < 2:
            raise UsageError(f"reduction={reduction}: one in so many trials goes on; give at least 2")
        levels = []
        level = least
        while level < most:
            levels.append(level)
            level *= reduction
        return cls((*levels, most), reduction)


@final
class Standing(NamedTuple):
    """Standing of a trial: its values at the rungs that it has reached, the lowest first.

    ``is_going``: it trains towards the next rung. ``is_over``: it never goes on.
    """

    number: int
    values: tuple[float, ...] = ()
    is_going: bool = False
    is_over: bool = False


class Next(enum.Enum):
    """Decision on a trial that has reached a rung."""

    GO_ON = "go on"
    PAUSE = "pause"
    COMPLETE = "complete"


def after_rung(rungs: Rungs, standings: Sequence[Standing], number: int) -> tuple[Next, str]:
    """Decision on trial ``number``, whose standing includes the value at the rung, and the reason."""
    rung = len(next(each.values for each in standings if each.number == number)) - 1
    level = rungs.levels[rung]
    if rung == len(rungs.levels) - 1:
        return Next.COMPLETE, f"all {level} epochs are trained"
    order = _order(standings, rung)
    place, quota = [each.number for each in order].index(number) + 1, len(order) // rungs.reduction
    if not math.isfinite(order[place - 1].values[rung]):
        return Next.PAUSE, f"its value at epoch {level} is not finite"
    return (Next.GO_ON if place <= quota else Next.PAUSE), _where(rungs, level, place, len(order))


def promote(rungs: Rungs, standings: Sequence[Standing], *, is_more: bool) -> tuple[int | None, str]:
    """Paused trial that goes on now, or ``None``, and the reason. ``is_more``: new trials may begin.

    If no new trial may begin, none is going and none is sound after all epochs, the best sound trial that paused at the
    highest rung goes on: so a search completes a trial even if it has few trials, or if its best trials have diverged.
    """
    for rung in range(len(rungs.levels) - 2, -1, -1):
        order = _order(standings, rung)
        for place, each in enumerate(order[: len(order) // rungs.reduction], 1):
            if _rests_at(each, rung) and math.isfinite(each.values[rung]):
                return each.number, _where(rungs, rungs.levels[rung], place, len(order))
    if is_more or any(each.is_going for each in standings):
        return None, "none is good enough among those of its rung"
    top = len(rungs.levels)
    resting = [
        (each.number, rungs.levels[rung])
        for rung in range(top - 2, -1, -1)
        for each in _order(standings, rung)
        if _rests_at(each, rung) and math.isfinite(each.values[rung])
    ]
    if resting and not any(len(each.values) == top and math.isfinite(each.values[-1]) for each in standings):
        number, level = resting[0]
        return number, f"the best of those that have paused at epoch {level}, because none gets further"
    return None, "no trial is left that could go on"


def _where(rungs: Rungs, level: int, place: int, count: int) -> str:
    """Text on the place of a trial among those that have reached a rung, and on how many go on there.

    >>> _where(Rungs.of(1, 9, 3), 1, 3, 4), _where(Rungs.of(1, 9, 3), 1, 2, 2)
    ('3rd of 4 at epoch 1; the best 1 goes on', '2nd of 2 at epoch 1; of fewer than 3 none goes on')
    """
    quota = count // rungs.reduction
    who = (
        f"the best {quota} go{'es' if quota == 1 else ''} on"
        if quota
        else f"of fewer than {rungs.reduction} none goes on"
    )
    return f"{_ordinal(place)} of {count} at epoch {level}; {who}"


def _ordinal(number: int) -> str:
    """Number of a place.

    >>> [_ordinal(each) for each in (1, 2, 3, 4, 11, 12, 13, 21, 102, 113)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '102nd', '113th']
    """
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number // 10 % 10 == 1 else endings.get(number % 10, 'th')}"


def _order(standings: Sequence[Standing], rung: int) -> list[Standing]:
    """Trials that have reached a rung, the best first; of equal trials, the one that began first."""
    there = [each for each in standings if len(each.values) > rung]
    return sorted(there, key=lambda each: (sound(each.values[rung]), each.number))


def sound(value: float) -> float:
    """Value by which trials are compared: infinity if it is not finite, because the trial has diverged.

    >>> sound(float("-inf")), sound(0.5)
    (inf, 0.5)
    """
    return value if math.isfinite(value) else math.inf


def _rests_at(standing: Standing, rung: int) -> bool:
    return len(standing.values) == rung + 1 and not standing.is_going and not standing.is_over
