"""What it costs to measure the gradient noise scale, by differences of steps beside each other.

A step that is measured takes longer than one without it, and so may those that are not. Both, in the shares in which
they come, are the cost. It is a small difference of large numbers, so an interval is given, and its upper end decides:
where few steps were timed, or other work disturbed them, nothing has been shown.
"""

from __future__ import annotations

import math

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make

SECONDS = {"large": 240.0, "cnn": 25.0}


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    measured = launch("noise_rank", *(each / (8 if quick else 1) for each in SECONDS.values()))
    table = Table("Cost of the gradient noise scale, 2 ranks", "ms")
    for name, taken in measured.items():
        table.rows += _rows(make(name).title, taken["every"], taken["cost_ms"], taken["milliseconds"])
    return [table]


def _rows(title: str, every: int, cost_ms: float, taken: dict[str, dict[str, list[float]]]) -> list[Row]:
    wall = {kind: Sample.of(values) for kind, values in taken["wall"].items()}
    share = 100 * cost_ms / every / (wall["without"].median / 2)
    return [
        Row(title, {"without, 2 steps": wall["without"]}, _cost(wall, every, "%")),
        Row("", {}, _cost({k: Sample.of(v) for k, v in taken["processor"].items()}, every, "% of processor time")),
        Row("", {}, (Verdict(share, "% by own count", most=1.0), Verdict(every, "steps each"))),
    ]


def _cost(taken: dict[str, Sample], every: int, unit: str) -> tuple[Verdict, ...]:
    """How much longer a step takes on average, in percent of one without it, and what it is at most.

    Samples are of two steps: of those ``measured`` the first is, and of the ``others`` none.
    """
    percent = 100 / every / (taken["without"].median / 2)
    measured, others = taken["measured"], taken["others"]
    cost = (measured.median + (every - 1) * others.median / 2) * percent
    within = math.hypot(measured.margin, (every - 1) * others.margin / 2) * percent
    return (
        Verdict(cost, f"{unit} more"),
        Verdict(within, "either way (95 %)"),
        Verdict(cost + within, "% at most", most=1.0),
    )
