"""What it costs to measure the gradient noise scale: steps with and without, in turns."""

from __future__ import annotations

import statistics

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    rounds, seconds = (3, 0.4) if quick else (9, 0.8)
    measured = launch("noise_rank", rounds, seconds)
    table = Table("Cost of the gradient noise scale, 2 ranks", "ms")
    for name, taken in measured.items():
        cost = 100 * (statistics.median(taken["on"]) / statistics.median(taken["off"]) - 1)
        share = 100 * taken["cost_ms"] / taken["every"] / statistics.median(taken["off"])
        verdicts = (
            Verdict(cost, "% slower", most=1.0),
            Verdict(share, "% by own count", most=1.0),
            Verdict(taken["every"], "steps each"),
        )
        samples = {state: Sample.of(taken[state]) for state in ("off", "on")}
        table.rows.append(Row(make(name).title, samples, verdicts))
    return [table]
