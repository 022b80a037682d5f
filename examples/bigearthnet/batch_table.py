"""Up to which batch does accuracy hold? Train with 1, 16, 32 and 64 base batches, and print the table.

    python -m examples.bigearthnet.batch_table              # 3 seeds, on two processes: README.md says how long
    python -m examples.bigearthnet.batch_table --quick      # tiny, to see that everything works
    python -m examples.bigearthnet.batch_table --results seed0.json seed1.json seed2.json      # of earlier runs
    python -m examples.bigearthnet.batch_table --write      # and put it into docs/how-to/reproduce-bigearthnet.md

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

from rich.console import Console
from rich.table import Table

import farandole
from examples.bigearthnet.experiment import FULL, QUICK, RESULTS, Report, merged, read, rewrite_pages, run_all, save
from examples.bigearthnet.findings import summary
from examples.bigearthnet.picture import draw
from examples.bigearthnet.tables import HEADINGS, batch_table_markdown, cells, sentences, title
from examples.bigearthnet.tune import tuned

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "bigearthnet.png"


def main() -> None:
    """Run, or read what was run; print, and write."""
    options = arguments()
    report = merged([read(file) for file in options.results]) if options.results else measure(options)
    console = Console(width=150, highlight=False)
    table = Table(*HEADINGS, title=title(report.experiment))
    for line in summary(report):
        table.add_row(*cells(line))
    console.print(table)
    for sentence in sentences(report):
        console.print(sentence)
    options.out.mkdir(parents=True, exist_ok=True)
    written = [options.out / f"batch_table.{end}" for end in ("json", "md", "png")]
    save(report, written[0])
    written[1].write_text(batch_table_markdown(report) + "\n")
    draw(summary(report), report.constant_f1, written[2])
    if options.write:
        publish(report)
        written += [RESULTS / "batch_table.json", PICTURE]
    console.print("written: " + "   ".join(map(str, written)))


def measure(options: argparse.Namespace) -> Report:
    """Train everything, in one job."""
    experiment = tuned(QUICK if options.quick else FULL)
    if options.seeds:
        experiment = replace(experiment, seeds=tuple(options.seeds))
    command = " ".join(["python -m examples.bigearthnet.batch_table", *options.given])
    made_by = {"command": command, "farandole": farandole.__version__, "machine": platform.machine()}
    report: Report = farandole.run(run_all, args=(experiment, made_by), np=options.processes, python_path=[str(ROOT)])[
        0
    ]
    return report


def publish(report: Report) -> None:
    """Replace what the page in docs/ shows."""
    save(report, RESULTS / "batch_table.json")
    draw(summary(report), report.constant_f1, PICTURE)
    rewrite_pages()


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
    parser.add_argument("--write", action="store_true", help="replace the table, the figure and the page in docs/, too")
    return parser.parse_args(namespace=argparse.Namespace(given=sys.argv[1:]))


if __name__ == "__main__":
    main()
