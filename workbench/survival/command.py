"""``python -m workbench.survival {faults,soak,reforms}``."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from workbench.cluster import Cluster, SlurmCluster, UnavailableError
from workbench.survival import cases, cases_counted, cases_hosts, cases_inside, cases_slurm
from workbench.survival.page import page, row
from workbench.survival.records import KERAS_BACKENDS, SCRIPTS, TrainingPlan
from workbench.survival.soak import HOSTS, reforms, soak
from workbench.survival.table import CaseResult, run

T = TypeVar("T")
Play: TypeAlias = Callable[[Path], list[CaseResult]]

COUNTED = TrainingPlan(framework="jax", step_s=0.02)


def main() -> None:
    """Run the command line; exit status 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m workbench.survival", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    faults = commands.add_parser("faults", help="all rows and phases of the table of faults")
    faults.add_argument("--write", type=Path, help="write the table to this file, beside those of other frameworks")
    faults.add_argument("--framework", choices=SCRIPTS, default="torch", help="whose training is to survive them")
    soaking = commands.add_parser("soak", help="random faults, on two hosts")
    soaking.add_argument("--seconds", type=float, default=900.0)
    soaking.add_argument("--seed", type=int, default=int(time.time()))
    many = commands.add_parser("reforms", help="re-form again and again")
    many.add_argument("--number", type=int, default=1000)
    asked = parser.parse_args()
    # SystemExit unwinds the `with` blocks that end the job and the cluster; by default the job would train on.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if asked.command == "faults":
        sys.exit(_faults(asked.write, _of_torch() if asked.framework == "torch" else _counted(asked.framework)))
    if asked.command == "reforms":
        report = _in_folder(lambda folder: reforms(folder, asked.number))
        print(report.text())
        sys.exit(bool(report.wrong))
    sys.exit(_soak(asked.seconds, asked.seed))


def _faults(target: Path | None, plays: Mapping[str, Play]) -> int:
    jobs, (_, load, _) = {}, os.getloadavg()
    for title, play in plays.items():
        print(title, flush=True)
        try:
            jobs[title] = _in_folder(play)
        except UnavailableError as reason:  # no namespaces or no Slurm here: the other tables are played all the same
            print(f"not played: {reason}")
    if target is not None:
        target.write_text(page(jobs, target.read_text() if target.exists() else "", load))
    wrong = [result for results in jobs.values() for result in results if result.wrong]
    for result in wrong:
        print(f"WRONG: {result.case.fault} in {result.case.phase}: {'; '.join(result.wrong)}")
    return len(wrong) > 0


def _of_torch() -> dict[str, Play]:
    return {
        "On one host": _one_host,
        "On one host with a full disk and short time limits": _lacking,
        "On two hosts": _two_hosts,
        "In Slurm": _in_slurm,
    }


def _counted(framework: str) -> dict[str, Play]:
    """Faults of a training that commits every few steps; of Keras, on each backend."""
    if framework == "jax":
        return {"With JAX, on one host": functools.partial(_counted_on_one_host, plan=COUNTED)}
    return {
        f"With Keras on {backend}, on one host": functools.partial(
            _counted_on_one_host, plan=replace(COUNTED, framework=framework, backend=backend)
        )
        for backend in KERAS_BACKENDS
    }


def _counted_on_one_host(folder: Path, plan: TrainingPlan) -> list[CaseResult]:
    own = cases_counted
    return run(folder, {"localhost": 4}, own.COUNTED, own.LAST, tell=_show, plan=plan)


def _one_host(folder: Path) -> list[CaseResult]:
    every = (*cases.ONE_HOST, *cases_inside.INSIDE)
    return run(folder, {"localhost": 4}, every, cases.LAST, tell=_show, plan=cases_inside.PLAN)


def _lacking(folder: Path) -> list[CaseResult]:
    own = cases_inside
    return run(folder, {"localhost": 4}, own.LACKING, own.LAST, tell=_show, options=own.OPTIONS)


def _two_hosts(folder: Path) -> list[CaseResult]:
    with Cluster(2) as cluster:
        return run(folder, HOSTS, cases_hosts.TWO_HOSTS, cluster=cluster, tell=_show)


def _in_slurm(folder: Path) -> list[CaseResult]:
    with SlurmCluster(2) as slurm:
        own = cases_slurm
        return run(folder, HOSTS, own.SLURM, own.LAST, cluster=slurm.cluster, inside=own.SALLOC, tell=_show)


def _show(result: CaseResult) -> None:
    print(row(result), flush=True)


def _soak(seconds: float, seed: int) -> int:
    """Half of the time with virtual workers, half without."""
    wrong = 0
    for mode, virtual in (("virtual workers", 6), ("normal mode", 0)):
        print(f"{mode}, seed {seed}", flush=True)
        report = _in_folder(lambda folder, virtual=virtual: soak(folder, seconds / 2, seed, virtual))  # type: ignore[misc]
        print(report.text(), flush=True)
        wrong += len(report.wrong)
    return wrong > 0


def _in_folder(do: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory(prefix="farandole-survival-") as folder:
        return do(Path(folder))  # which has ended all processes that write there
