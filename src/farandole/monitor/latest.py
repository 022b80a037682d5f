"""Latest numbers of a run, and their means over the ranks that are still there.

    latest = Latest()
    latest.take(MemberRecord(...)); latest.take(PointRecord(...))
    latest.mean("loss")             # Mean(value=0.31, ranks=2)

Ranks count that have logged the metric since the last forming of a generation in which any did: what a rank said last
that has left is no part of a mean of now. Numbers of generations do not tell that, as each session of a notebook begins
anew with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, final

from farandole.monitor.folder import MemberRecord, PointRecord, Record


@final
class Mean(NamedTuple):
    """Mean of the latest values of so many ``ranks``; NaN where one of them is not finite, or there is none."""

    value: float
    ranks: int


@final
class Latest:
    """Latest value of each metric and rank, and how many generations had been formed when it came."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, tuple[int, float]]] = {}
        self._formed, self._generation = 0, 0

    def take(self, record: Record) -> None:
        """Take in points of a rank, the latest last, or a new generation."""
        if isinstance(record, MemberRecord):
            self._formed, self._generation = self._formed + 1, record.generation
        elif isinstance(record, PointRecord):
            formed = self._formed - (record.generation != self._generation)  # that came late
            for point in record.points:
                for name, value in point.values.items():
                    self._values.setdefault(name, {})[record.rank] = formed, value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def of(self, name: str, rank: int) -> tuple[int, float]:
        """Latest value of one rank, which may have left, behind the number of generations formed when it came."""
        return self._values[name][rank]

    def mean(self, name: str) -> Mean:
        """Mean of the latest values of the ranks that count."""
        told = list(self._values.get(name, {}).values())
        newest = max((formed for formed, _ in told), default=0)
        values = [value for formed, value in told if formed == newest]
        is_sound = bool(values) and all(map(math.isfinite, values))
        return Mean(sum(values) / len(values) if is_sound else math.nan, len(values))
