"""Up to which batch does accuracy hold? Train with 1, 16, 32 and 64 base batches, and print the table.

    python -m examples.bigearthnet.batch_table              # 3 seeds, on two processes: README.md says how long
    python -m examples.bigearthnet.batch_table --quick      # tiny, to see that everything works
    python -m examples.bigearthnet.batch_table --results seed0.json seed1.json seed2.json      # of earlier runs

All numbers are of these runs, but for the columns of published ones. Every row says how its workers were made: *real*,
a process each, or *accumulated*, several played by each process in turn (see docs/how-to/reproduce-bigearthnet.md).
Written to --out: batch_table.json, batch_table.md and batch_table.png.
"""

from __future__ import annotations

import argparse
import platform
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

import farandole
from examples.bigearthnet.experiment import FULL, QUICK, Experiment, Report, merged, run_all
from examples.bigearthnet.findings import PUBLISHED, Finding, Line, findings, summary
from examples.bigearthnet.picture import draw

ROOT = Path(__file__).resolve().parents[2]
HEADINGS = ("optimizer", "batch", "workers", "rate", "steps", "F1", "of the seeds", "published batch", "published F1")


def main() -> None:
    """Run, or read what was run; print, and write."""
    options = arguments()
    report = merged([read(file) for file in options.results]) if options.results else measure(options)
    lines = summary(report)
    found = findings(lines, report.constant_f1)
    console = Console(width=150, highlight=False)
    table = Table(*HEADINGS, title=title(report.experiment))
    for line in lines:
        table.add_row(*cells(line))
    console.print(table)
    for sentence in sentences(found, report):
        console.print(sentence)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "batch_table.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    (options.out / "batch_table.md").write_text(markdown(lines, found, report))
    draw(lines, report.constant_f1, options.out / "batch_table.png")
    console.print("written: " + "   ".join(str(options.out / f"batch_table.{end}") for end in ("json", "md", "png")))


def measure(options: argparse.Namespace) -> Report:
    """Train everything, in one job."""
    experiment = QUICK if options.quick else FULL
    if options.seeds:
        experiment = replace(experiment, seeds=tuple(options.seeds))
    command = " ".join(["python -m examples.bigearthnet.batch_table", *options.given])
    made_by = {"command": command, "farandole": farandole.__version__, "machine": platform.machine()}
    report: Report = farandole.run(run_all, args=(experiment, made_by), np=options.processes, python_path=[str(ROOT)])[
        0
    ]
    return report


def read(file: Path) -> Report:
    """What an earlier run has written."""
    return msgspec.json.decode(file.read_bytes(), type=Report)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.bigearthnet.batch_table", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: what comes out means nothing")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 1 2")
    parser.add_argument("--processes", type=int, default=2, help="real workers (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default: %(default)s)")
    parser.add_argument("--results", type=Path, nargs="+", help="batch_table.json of earlier runs, instead of training")
    return parser.parse_args(namespace=argparse.Namespace(given=sys.argv[1:]))


def title(experiment: Experiment) -> str:
    """What all rows have in common."""
    return (
        f"{experiment.train_size} synthetic patches, {experiment.epochs} epochs of which {experiment.warmup_epochs:g} "
        f"warm up, {len(experiment.seeds)} seed(s), B0 = {experiment.base_batch}"
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


def sentences(found: list[Finding], report: Report) -> list[str]:
    """What follows from the table."""
    said = [f"{'yes' if each.holds else 'NO '}  {each.claim}: {each.numbers}" for each in found]
    took = f"it took {report.seconds / 60:.1f} minutes, and {report.cpu_seconds / 60:.1f} minutes of a core's time"
    return [*said, f"F1 of naming always the same labels: {report.constant_f1:.3f}", took]


def markdown(lines: list[Line], found: list[Finding], report: Report) -> str:
    """Table and findings for a page."""
    rows = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return table + "\n\n" + "\n".join(f"- {sentence}" for sentence in sentences(found, report)) + "\n"


if __name__ == "__main__":
    main()
