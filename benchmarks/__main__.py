"""Measure Farandole against what else there is, side by side on this machine.

make bench                                      # everything, a quarter of an hour
python -m benchmarks --quick                    # a few minutes, to see that it works
python -m benchmarks --only allreduce,steps     # some sections
"""

from __future__ import annotations

import argparse
import compileall
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

import farandole
from benchmarks import (
    allreduce,
    cluster_jobs,
    data,
    distributed,
    divergence,
    elastic,
    footprint,
    hosts,
    inference,
    large_batch,
    monitor,
    negotiated,
    noise,
    picture,
    report,
    search,
    slurm,
    steps,
)
from benchmarks.frameworks import section as frameworks
from benchmarks.measure import Table

SECTIONS: dict[str, Callable[[bool], list[Table]]] = {
    "allreduce": allreduce.run,
    "negotiated": negotiated.run,
    "steps": steps.run,
    "distributed": distributed.run,
    "noise": noise.run,
    "divergence": divergence.run,
    "footprint": footprint.run,
    "optimizers": large_batch.run,
    "hosts": hosts.run,
    "jobs": cluster_jobs.run,
    "elastic": elastic.run,
    "frameworks": frameworks.run,
    "slurm": slurm.run,
    "search": search.run,
    "monitor": monitor.run,
    "data": data.run,
    "inference": inference.run,
}


def main() -> None:
    """Run the chosen sections one after the other; print, draw and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: a few minutes")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help="sections, separated by commas (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for bench.json and bench.png")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    # As an installer has; where PYTHONDONTWRITEBYTECODE is set every process that starts would.
    compileall.compile_dir(Path(farandole.__file__).parent, quiet=1)
    console, begin = Console(width=150), time.monotonic()
    tables: list[Table] = []
    for name in chosen:
        for table in SECTIONS[name](options.quick):
            report.show(table, console)
            tables.append(table)
    report.save(tables, options.out)
    drawn = picture.draw(tables, options.out / "bench.png")
    reached, asked = report.summary(tables)
    console.print(f"{reached} of {asked} targets reached, in {time.monotonic() - begin:.0f} s")
    made = ["bench.json", "bench.md", *(["bench.png"] if drawn else [])]
    console.print("written: " + "   ".join(str(options.out / name) for name in made))


if __name__ == "__main__":
    main()
