"""A named all-reduce of four bytes through the whole runtime, as a script logs its loss."""

from __future__ import annotations

from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict


def run(quick: bool) -> list[Table]:
    """The table of this section."""
    measured = launch("negotiated_rank", *((3, 200) if quick else (9, 500)))
    samples = {name: Sample.of(values) for name, values in measured.items()}
    ours, gloo = samples["farandole"].median, samples["gloo"].median
    verdicts = (Verdict(ours, "us", most=250.0), Verdict(gloo / ours, "x gloo"))
    row = Row('hvd.allreduce(t, name="loss"), 4 B', samples, verdicts)
    return [Table("Negotiated lane, 2 ranks", "us", rows=[row])]
