"""Check of predictions against measurements that were held back, in comparison with two simple oracles.

    check = held_back(observations, most=128)
    check.error, check.last_error, check.line_error, check.held

The oracles: the last value, unchanged; a line in log2 p through the last four points, by least squares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np

from farandole.predict.model import Model, Observation, Quantiles, fit

FEWEST = 4
"""Least count of different numbers of ranks that a check fits to."""
SHARE = 8
"""A check fits to measurements on at most this share of the ranks."""


@final
class Held(NamedTuple):
    """Step that was held back, and its predictions."""

    ranks: float
    seconds: float
    said: Quantiles
    last: float
    line: float


@final
class Check(NamedTuple):
    """Result of ``held_back``: errors are the largest, as shares of the measured value."""

    most: float
    fitted: int
    points: tuple[Held, ...]
    leaves_host: bool
    """True if the held-back steps span several hosts, and no fitted step did."""

    @property
    def error(self) -> float:
        """Error of the model."""
        return max(abs(p.said.middle / p.seconds - 1) for p in self.points)

    @property
    def last_error(self) -> float:
        """Error of the oracle that the last value stays."""
        return max(abs(p.last / p.seconds - 1) for p in self.points)

    @property
    def line_error(self) -> float:
        """Error of the line."""
        return max(abs(p.line / p.seconds - 1) for p in self.points)

    @property
    def held(self) -> int:
        """Number of points inside of their interval."""
        return sum(p.said.low <= p.seconds <= p.said.high for p in self.points)

    def __str__(self) -> str:
        above = "point above is" if len(self.points) == 1 else f"{len(self.points)} points above are at most"
        text = (
            f"Checked: fitted up to {self.most:,.0f} ranks, the {above} "
            f"{self.error:.1%} off, {self.held} within their interval; "
            f"last value {self.last_error:.1%}, line {self.line_error:.1%}."
        )
        text += " None of those fitted spans two hosts, so the network is a guess." if self.leaves_host else ""
        better = [name for name, e in (("last value", self.last_error), ("line", self.line_error)) if e < self.error]
        return text + (f" Here the {' and the '.join(better)} did better than the model." if better else "")


def last(steps: Sequence[Observation], ranks: float) -> float:
    """Oracle: the seconds on the most ranks."""
    return steps[-1].seconds + 0.0 * ranks


def line(steps: Sequence[Observation], ranks: float) -> float:
    """Oracle: a line in log2 p through the last four points; NaN for fewer than two."""
    near = steps[-4:]
    if len(near) < 2:
        return math.nan
    slope, level = np.polyfit(np.log2([o.ranks for o in near]), [o.seconds for o in near], 1)
    return float(level + slope * math.log2(ranks))


def held_back(observations: Sequence[Observation], most: float = 0.0) -> Check | None:
    """Fit to measurements on at most ``most`` ranks, and compare the rest; None if there are too few.

    ``most`` is by default an eighth of the most ranks, or the ``FEWEST`` smallest numbers of ranks.
    """
    sizes = sorted({o.ranks for o in observations if o.kind == "step"})
    if len(sizes) <= FEWEST:
        return None
    most = most or max(sizes[FEWEST - 1], sizes[-1] / SHARE)
    model: Model = fit([o for o in observations if o.ranks <= most])
    steps = model.steps
    rest = [o for o in observations if o.kind == "step" and o.ranks > most]
    points = tuple(
        Held(o.ranks, o.seconds, model.quantiles(o.ranks, o.hosts), last(steps, o.ranks), line(steps, o.ranks))
        for o in sorted(rest, key=lambda o: o.ranks)
    )
    leaves_host = max(o.hosts for o in steps) == 1 < max((o.hosts for o in rest), default=1)
    return Check(steps[-1].ranks, len(steps), points, leaves_host) if points else None


def all_cuts(observations: Sequence[Observation]) -> list[Check]:
    """Checks at every number of ranks from the fourth on: neighbours share points, and are not independent."""
    sizes = sorted({o.ranks for o in observations if o.kind == "step"})
    checks = [held_back(observations, most) for most in sizes[FEWEST - 1 : -1]]
    return [check for check in checks if check]
