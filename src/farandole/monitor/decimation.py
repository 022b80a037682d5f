"""Series of points that stays small: min-max decimation, so that no peak is lost.

    series = Series(2000)
    for step, loss in enumerate(losses): series.add(step, time_s, loss)
    series.steps, series.lows, series.highs

A series of at most ``most`` points is kept whole. Beyond that, neighbours are merged in pairs: a bucket keeps the
smallest and the largest value in it, its last value, and where it ends; the width of a bucket doubles each time. So a
curve of any length can be drawn from it with all its peaks, and adding a point costs the same at any length.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final


class SeriesBucket(NamedTuple):
    """Points next to each other: the last ``step``, ``time_s`` and value of them, and the smallest and largest value.

    Values that are no numbers (NaN) count as neither; a bucket of nothing else has NaN for both.
    """

    step: int
    time_s: float
    last: float
    low: float
    high: float


@final
class Series:
    """At most ``most`` buckets of one series, oldest first."""

    __slots__ = ("_filled", "_most", "buckets", "width")

    def __init__(self, most: int = 2000) -> None:
        if most < 2:
            raise ValueError(f"a series of {most} buckets cannot be halved: give 2 or more")
        self._most = most
        self.buckets: list[SeriesBucket] = []
        self.width = 1
        """Points in a whole bucket; the last one may have fewer."""
        self._filled = 0

    def add(self, step: int, time_s: float, value: float) -> bool:
        """Add a point; true if that has changed older buckets than the last one."""
        point = SeriesBucket(step, time_s, value, value, value)
        if self.buckets and self._filled < self.width:
            self.buckets[-1] = merged(self.buckets[-1], point)
            self._filled += 1
            return False
        halved = len(self.buckets) >= self._most
        if halved:
            self._halve()
            if self._filled < self.width:  # the number of buckets was odd, and the last of them is half full
                self.buckets[-1] = merged(self.buckets[-1], point)
                self._filled += 1
                return True
        self.buckets.append(point)
        self._filled = 1
        return halved

    def _halve(self) -> None:
        old = self.buckets
        is_odd = len(old) % 2 == 1
        pairs = [merged(a, b) for a, b in zip(old[::2], old[1::2], strict=False)]
        self.buckets = [*pairs, *old[len(old) - is_odd :]]
        self._filled = self.width if is_odd else 2 * self.width
        self.width *= 2

    def __len__(self) -> int:
        return len(self.buckets)


def merged(a: SeriesBucket, b: SeriesBucket) -> SeriesBucket:
    """One bucket of two, the later one last.

    >>> merged(SeriesBucket(1, 0.1, 3.0, 3.0, 3.0), SeriesBucket(2, 0.2, 1.0, 1.0, 5.0))
    SeriesBucket(step=2, time_s=0.2, last=1.0, low=1.0, high=5.0)
    """
    low = b.low if not a.low <= b.low and not math.isnan(b.low) else a.low
    high = b.high if not a.high >= b.high and not math.isnan(b.high) else a.high
    return SeriesBucket(b.step, b.time_s, b.last, low, high)
