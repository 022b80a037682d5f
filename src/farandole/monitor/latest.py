"""Latest numbers of a run, and their means over the current ranks.

    latest = Latest()
    latest.add_record(MemberRecord(...)); latest.add_record(PointRecord(...))
    latest.mean("loss")             # Mean(value=0.31, ranks=2)

A mean counts the ranks that have logged the metric in the last formed generation in which any rank did: the last value
of a rank that has left does not count. Formed generations are counted here, because the generation numbers of a
notebook begin anew with each session.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, final

from farandole.monitor.folder import MemberRecord, PointRecord, Record


@final
class Mean(NamedTuple):
    """Mean of the latest values of ``ranks`` ranks; NaN if a value is not finite, or if there is none."""

    value: float
    ranks: int


@final
class Latest:
    """Latest value of each metric and rank, and the number of generations formed by then."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, tuple[int, float]]] = {}
        self._formed, self._generation = 0, 0

    def add_record(self, record: Record) -> None:
        """Add points of a rank, the latest last, or a new generation."""
        if isinstance(record, MemberRecord):
            self._formed, self._generation = self._formed + 1, record.generation
        elif isinstance(record, PointRecord):
            formed = self._formed - (record.generation != self._generation)  # late points of the generation before
            for point in record.points:
                for name, value in point.values.items():
                    self._values.setdefault(name, {})[record.rank] = formed, value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def of(self, name: str, rank: int) -> tuple[int, float]:
        """Number of generations formed by then, and latest value, of one rank, which may have left."""
        return self._values[name][rank]

    def mean(self, name: str) -> Mean:
        """Mean of the latest values of the ranks that count."""
        told = list(self._values.get(name, {}).values())
        newest = max((formed for formed, _ in told), default=0)
        values = [value for formed, value in told if formed == newest]
        is_sound = bool(values) and all(map(math.isfinite, values))
        return Mean(sum(values) / len(values) if is_sound else math.nan, len(values))
