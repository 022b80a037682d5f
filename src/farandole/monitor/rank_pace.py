"""Pace of ranks: finds the rank for which the others wait, by the time of its steps without its own waiting.

    pace = RankPace()
    pace.add_record(PointRecord(...))
    pace.slowest()                  # Slowest(rank=5, times=1.8): its work takes 1.8 times that of the median rank

Values are smoothed, so that one long step does not make a rank the slowest.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple, final

from farandole.monitor.folder import MemberRecord, PointRecord, Record

SMOOTHING = 0.2
"""Weight of a new value."""

FEWEST_POINTS = 5
"""Points of each rank that are needed before a rank is named."""

LEAST_TIMES = 1.25
"""Ratio from which on a rank is slower than the others."""


@final
class Slowest(NamedTuple):
    """Slowest rank, and the ratio (``times``) of its work to the median work of the other ranks."""

    rank: int
    times: float


@final
class RankPace:
    """Seconds of work per step, for each rank of the current generation."""

    def __init__(self) -> None:
        self._work_s: dict[int, float] = {}
        self._points: dict[int, int] = {}

    def add_record(self, record: Record) -> None:
        """Add points of a rank; a new generation begins without any."""
        if isinstance(record, MemberRecord):
            self._work_s, self._points = {}, {}
        elif isinstance(record, PointRecord):
            for point in record.points:
                if "step_s" in point.values:
                    self._note(record.rank, point.values["step_s"] - point.values.get("wait_s", 0.0))

    def _note(self, rank: int, work_s: float) -> None:
        before_s = self._work_s.get(rank, work_s)
        self._work_s[rank] = before_s + SMOOTHING * (work_s - before_s)
        self._points[rank] = self._points.get(rank, 0) + 1

    def slowest(self) -> Slowest | None:
        """Rank that is slower than the others; ``None`` if there is none, or if there are too few points."""
        if len(self._work_s) < 2 or min(self._points.values()) < FEWEST_POINTS:
            return None
        rank = max(self._work_s, key=lambda each: self._work_s[each])
        median_s = statistics.median(work_s for each, work_s in self._work_s.items() if each != rank)
        times = self._work_s[rank] / median_s if median_s > 0 else 0.0
        return Slowest(rank, times) if times >= LEAST_TIMES else None
