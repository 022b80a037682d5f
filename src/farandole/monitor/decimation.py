"""Series of bounded size: bins of steps with minimum, maximum and mean, so that no peak is lost.

    series = Series(2000)
    for step, loss in enumerate(losses): series.add(step, time_s, loss)
    series.bins[-1].high

Up to ``most`` steps, each step has a bin of its own. Beyond that the width of bins doubles, and neighbouring bins are
merged. Points may be added in any order: points of many ranks, for a band over all of them, and points of a training
that went back to an earlier step.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from operator import attrgetter
from typing import final

MOST = 2000


@final
class Bin:
    """Points of one range of steps: number of the range, last time of its points, and statistics of their values."""

    __slots__ = ("count", "high", "low", "number", "time_s", "total")

    def __init__(self, number: int, time_s: float) -> None:
        self.number, self.time_s = number, time_s
        self.count, self.total = 0, 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, time_s: float, value: float) -> None:
        """Add a point; a value that is not finite only moves the time."""
        self.time_s = max(self.time_s, time_s)
        if math.isfinite(value):
            self.count += 1
            self.total += value
            self.low, self.high = min(self.low, value), max(self.high, value)

    def merge(self, other: Bin) -> None:
        """Add all points of another bin."""
        self.time_s = max(self.time_s, other.time_s)
        self.count += other.count
        self.total += other.total
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    @property
    def mean(self) -> float:
        """Mean of the values; NaN if none was finite."""
        return self.total / self.count if self.count else math.nan


@final
class Series:
    """At most ``most`` bins, in the order of their steps. Bin ``n`` has the ``width`` steps from ``n * width`` on."""

    __slots__ = ("_most", "bins", "changed", "width")

    def __init__(self, most: int = MOST) -> None:
        if most < 2:
            raise ValueError(f"a series of {most} bins cannot be halved: give 2 or more")
        self._most = most
        self.bins: list[Bin] = []
        self.width = 1
        self.changed = 0
        """Index of the first bin that has changed since a reader set this to the number of bins."""

    def add(self, step: int, time_s: float, value: float) -> None:
        """Add a point."""
        number, bins = max(0, step) // self.width, self.bins
        if bins and bins[-1].number == number:
            place = len(bins) - 1
        elif not bins or bins[-1].number < number:
            place = len(bins)
        else:
            place = bisect_left(bins, number, key=attrgetter("number"))
        if place == len(bins) or bins[place].number != number:
            bins.insert(place, Bin(number, time_s))
        bins[place].add(time_s, value)
        self.changed = min(self.changed, place)
        if len(bins) > self._most:
            self._widen()

    def _widen(self) -> None:
        while len(self.bins) > self._most:
            self.width *= 2
            merged: list[Bin] = []
            for each in self.bins:
                each.number //= 2
                if merged and merged[-1].number == each.number:
                    merged[-1].merge(each)
                else:
                    merged.append(each)
            self.bins = merged
        self.changed = 0

    def columns(self, begin: int = 0) -> dict[str, list[float | int | None]]:
        """Bins from the ``begin``-th on, by column: step, wall time, mean, low and high (if they differ)."""
        bins = self.bins[begin:]
        told: dict[str, list[float | int | None]] = {
            "s": [each.number * self.width for each in bins],
            "w": [round(each.time_s, 2) for each in bins],
            "m": [short(each.mean) for each in bins],
        }
        if any(each.low < each.high for each in bins):
            told["l"] = [short(each.low) for each in bins]
            told["h"] = [short(each.high) for each in bins]
        return told

    def __len__(self) -> int:
        return len(self.bins)


def short(value: float) -> float | None:
    """A number with as few digits as a picture needs; ``None`` if it is not finite.

    >>> short(0.12345678901), short(float("inf"))
    (0.1234568, None)
    """
    return float(f"{value:.7g}") if math.isfinite(value) else None
