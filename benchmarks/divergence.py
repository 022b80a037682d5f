"""What the detector of diverging ranks costs, by differences of blocks of steps beside each other.

Of 64 steps one is looked at, of models with large tensors one of 16: a block has 64, with the detector or without it.
The cost is a small difference of large numbers, so an interval is given: where other work disturbed the steps, nothing
has been shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make

SECONDS = {"tiny": 60.0, "cnn": 120.0}


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    measured = launch("divergence_rank", *(each / (8 if quick else 1) for each in SECONDS.values()))
    return [costs("Cost of the detector of diverging ranks, 2 ranks", measured)]


def costs(title: str, measured: Mapping[str, Any], most: float | None = 0.5) -> Table:
    """Table of what ``divergence_rank.compare`` has measured, by network; ``most`` per cent are allowed of the tiny."""
    table = Table(title, "ms")
    for name, taken in measured.items():
        for clock, more in (("wall", "% more"), ("processor", "% more processor time")):
            off, cost = Sample.of(taken[clock]["off"]), Sample.of(taken[clock]["cost"])
            share, within = 100 * cost.median / off.median, 100 * cost.margin / off.median
            limit = most if (name, clock) == ("tiny", "processor") else None
            verdicts = (Verdict(share, more, most=limit), Verdict(within, "either way (95 %)"))
            samples = {"without, 64 steps": off} if clock == "wall" else {}
            table.rows.append(Row(make(name).title if clock == "wall" else "", samples, verdicts))
    return table
