"""Training steps of three networks on two ranks with one thread each, and what a timeline costs."""

from __future__ import annotations

import statistics

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make
from benchmarks.steppers import SHARDS


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    rounds, seconds = (3, 0.4) if quick else (9, 1.0)
    measured = launch("steps_rank", rounds, seconds)
    steps = Table("Training step, 2 ranks, 1 thread each", "ms")
    for name in ("large", "tiny", "cnn"):
        task = make(name)
        samples = {contender: Sample.of(values) for contender, values in measured[name].items()}
        ours = samples["farandole"].median
        verdicts = (
            Verdict(ours / samples["ddp"].median, "x DDP", most=task.most),
            Verdict(ours / samples["none"].median, "x none"),
        )
        steps.rows.append(Row(task.title, samples, verdicts))
    return [steps, _virtual(measured["virtual workers"]), _timeline(measured["timeline"])]


def _virtual(taken: dict[str, list[float]]) -> Table:
    """The same micro-batches, added up in one order for any number of workers."""
    samples = {contender: Sample.of(values) for contender, values in taken.items()}
    ratio = samples["virtual workers"].median / samples["accumulating"].median
    row = Row(make("large").title, samples, (Verdict(ratio, "x accumulating", most=1.15),))
    return Table(f"Virtual workers, 2 ranks, {SHARDS} micro-batches each", "ms", rows=[row])


def _timeline(taken: dict[str, list[float]]) -> Table:
    """Each round with is compared with the round without just before it."""
    cost = statistics.median(100 * (on / off - 1) for off, on in zip(taken["off"], taken["on"], strict=True))
    samples = {f"timeline {state}": Sample.of(values) for state, values in taken.items()}
    row = Row(make("cnn").title, samples, (Verdict(cost, "% slower", most=2.0),))
    return Table("Cost of the timeline, 2 ranks", "ms", rows=[row])
