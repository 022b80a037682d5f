"""What it costs to measure the gradient noise scale, by differences of steps beside each other.

A step that is measured differs from one that is not, and both from one of a training that measures nothing. What they
take more, in the shares in which they come, is the cost. Medians of differences say how far off they may be: where that
is more than what is asked for, nothing has been shown.
"""

from __future__ import annotations

import math

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    measured = launch("noise_rank", 10.0 if quick else 40.0)
    table = Table("Cost of the gradient noise scale, 2 ranks", "ms")
    for name, taken in measured.items():
        every, steps = taken["every"], taken["steps"]
        slower, within = _cost(steps["wall"], every)
        more, more_within = _cost(steps["processor"], every)
        share = 100 * taken["cost_ms"] / every / Sample.of(steps["wall"]["without"]).median
        samples = {kind: Sample.of(values) for kind, values in steps["wall"].items() if not kind.startswith("more")}
        verdicts = (
            (Verdict(slower, "% slower", most=1.0), Verdict(within, "either way (95 %)", most=1.0)),
            (Verdict(more, "% more processor time", most=1.0), Verdict(more_within, "either way (95 %)", most=1.0)),
            (Verdict(share, "% by own count", most=1.0), Verdict(every, "steps each")),
        )
        table.rows += [
            Row(make(name).title if n == 0 else "", samples if n == 0 else {}, v) for n, v in enumerate(verdicts)
        ]
    return [table]


def _cost(taken: dict[str, list[float]], every: int) -> tuple[float, float]:
    """How much longer a step takes on average, in percent, and half the width of the interval that holds it."""
    base = Sample.of(taken["without"]).median / 100
    measured, others = (Sample.of(taken[f"more {kind}"]) for kind in ("measured", "others"))
    cost = (measured.median + (every - 1) * others.median) / every
    return cost / base, math.hypot(measured.margin, (every - 1) * others.margin) / every / base
