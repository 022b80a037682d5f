"""Numbers and what they must reach."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True)
class Sample:
    """What the rounds of one measurement gave."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Keep them all; medians and quartiles are taken when asked for."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a share of the median."""
        if len(self.values) < 2 or self.median == 0:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2 / abs(self.median)

    @property
    def margin(self) -> float:
        """Half the width of the interval in which the median of many more values would lie, 95 times of 100.

        By order statistics (the ranks 1.96 standard deviations of a binomial around the middle): no distribution is
        assumed. NaN for fewer than 6 values, which cannot tell.
        """
        n, ordered = len(self.values), sorted(self.values)
        low = math.floor((n - 1.96 * math.sqrt(n)) / 2)
        return math.nan if low < 0 or n < 6 else (ordered[n - 1 - low] - ordered[low]) / 2


@final
@dataclass(frozen=True)
class Verdict:
    """A number that is compared with what it must reach (``least`` or ``most``), or only shown."""

    value: float
    unit: str
    least: float | None = None
    most: float | None = None

    @property
    def passed(self) -> bool | None:
        """``None`` where nothing is asked."""
        if self.least is not None:
            return self.value >= self.least
        return None if self.most is None else self.value <= self.most

    @property
    def target(self) -> str:
        """What must be reached."""
        if self.least is not None:
            return f">= {self.least:g}"
        return "" if self.most is None else f"<= {self.most:g}"


@final
@dataclass(frozen=True)
class Row:
    """One line of a table: a sample per contender, and what follows from them; ``nbytes`` is its place in a picture."""

    what: str
    samples: dict[str, Sample]
    verdicts: tuple[Verdict, ...] = ()
    nbytes: int = 0


@final
@dataclass
class Table:
    """One section of the benchmark; ``unit`` is that of its samples, ``panel`` the picture it is drawn in."""

    title: str
    unit: str
    panel: str = ""
    rows: list[Row] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """What is written as JSON."""
        return asdict(self)
