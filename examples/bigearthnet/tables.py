"""The batch table and the trials before it as text: rows of cells for a terminal, and Markdown for a page.

lines = summary(report)
for line in lines:
    table.add_row(*cells(line))
page = batch_table_markdown(report)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from examples.bigearthnet.experiment import FULL, Experiment, Report, same_but_for_seeds
from examples.bigearthnet.findings import PUBLISHED, Line, findings, summary
from examples.bigearthnet.tune import BESIDE, EVERY, Tuning, best, describe, tuned

HEADINGS = ("optimizer", "batch", "workers", "rate", "steps", "F1", "of the seeds", "published batch", "published F1")


def title(experiment: Experiment) -> str:
    """What all rows have in common."""
    return (
        f"{experiment.train_size} synthetic patches, {experiment.epochs} epochs of which {experiment.warmup_epochs:g} "
        f"warm up, {len(experiment.seeds)} seeds, B0 = {experiment.base_batch}"
    )


def cells(line: Line) -> list[str]:
    """A row as text."""
    first, published = line.first, PUBLISHED[line.first.row.ratio]
    outcome = first.outcome
    is_sgd = first.row.optimizer == "sgd"
    return [
        first.row.optimizer.upper(),
        f"{first.batch} ({first.row.ratio} x B0)",
        f"{first.workers}, {outcome.kind}" + ("" if outcome.kind == "real" else f" on {outcome.processes}"),
        f"{outcome.peak_lr:.3g}",
        str(outcome.steps),
        f"{line.f1:.3f} ± {line.deviation:.3f}",
        " ".join(f"{f1:.3f}" for f1 in line.f1s),
        published.batch if is_sgd else "",
        f"{published.f1:.2f} {published.remark}".strip() if is_sgd else "",
    ]


def sentences(report: Report) -> list[str]:
    """What follows from the table."""
    found = findings(summary(report), report.constant_f1)
    said = [f"{'yes' if each.holds else 'NO '}  {each.claim}: {each.numbers}" for each in found]
    took = f"it took {report.seconds / 60:.1f} minutes, and {report.cpu_seconds / 60:.1f} minutes of a core's time"
    return [*said, f"F1 of naming always the same labels: {report.constant_f1:.3f}", took]


def batch_table_markdown(report: Report) -> str:
    """Table and findings for a page."""
    said = [title(report.experiment), *sentences(report), f"made by `{report.made_by['command']}`"]
    if not same_but_for_seeds(report.experiment, tuned(FULL)):
        said.append("of other settings than `experiment.py` has now: run it again")
    return markdown(HEADINGS, map(cells, summary(report))) + "\n\n" + "\n".join(f"- {each}" for each in said)


def tuning_markdown(tuning: Tuning) -> str:
    """All trials, with those marked that were chosen, for a page."""
    chosen = best(tuning).values()
    beside = [each for each in tuning.trials if each.row in BESIDE]
    rows = [[describe(t.row), f"{t.f1:.3f}", "chosen" if t.row in chosen else ""] for t in tuning.trials]
    said = [f"{len(tuning.trials)} trials, with the seed {tuning.seed}"]
    if len(tuning.trials) < len(EVERY):
        said.append(f"{len(EVERY) - len(tuning.trials)} of them were not made yet: run it again")
    if beside:
        highest = max(beside, key=lambda each: each.f1)
        said.append(f"tuned anew at 32 x B0, SGD reaches {highest.f1:.3f} ({describe(highest.row)})")
    return markdown(("tried", "F1 on validation patches", ""), rows) + "\n\n" + "\n".join(f"- {each}" for each in said)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, ["---"] * len(headings), *rows])
