"""``farandole bench``: measure the engines here, and show which one a job would use.

farandole bench                     two ranks on this host
farandole bench -H a:2,b:2          four ranks on two hosts
farandole bench --json bench.json   the same for programs, too
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

import msgspec

from farandole.control.entry import entry_command
from farandole.engines.candidates import CANDIDATES
from farandole.engines.choose import HYBRID, choose, considered
from farandole.errors import FarandoleError, UsageError
from farandole.launch.function.function import run
from farandole.launch.hosts.plan import parse_hosts
from farandole.launch.tools.measuring import SIZES, Measured, measure

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 80
MPI_S = 120.0
"""Timeout of an mpiexec run."""
BUSY = 0.5
"""Runnable processes per core above which times are not comparable."""
ACROSS = "tcp"
EXAMPLES = """\
examples:
  farandole bench
  farandole bench -np 4 --engines shm,tcp
  farandole bench -H node1:2,node2:2 --json bench.json

The time is that of an all-reduce of float32 in the engine's memory: the median
over rounds in which the engines take turns, of the slowest rank. Every result
is checked. GB/s are bytes of the array per second.
"""


@final
class BenchReport(msgspec.Struct, frozen=True):
    """All results; ``load``: load of the machine at the start; ``lacks``: why an engine was not measured."""

    hosts: list[str]
    load: float
    cores: int
    chosen: str
    reason: str
    considered: dict[str, str]
    seconds: dict[str, dict[int, list[float]]]
    lacks: dict[str, str]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``bench`` to the commands."""
    parser = subparsers.add_parser(
        "bench", help="how fast the engines are here, and which a job would get", description=EXAMPLES
    )
    parser.add_argument("-np", "--num-proc", type=int, dest="np", metavar="N", help="number of ranks (default: 2)")
    parser.add_argument("-H", "--hosts", default="", metavar="HOST:SLOTS,...", help="hosts and ranks (default: here)")
    names = [name for name in CANDIDATES if name != "solo"]
    parser.add_argument("--engines", default="", metavar="NAMES", help=f"some of: {','.join(names)}")
    parser.add_argument(
        "--seconds", type=float, default=0.2, metavar="X", help="seconds for each engine and size (default: 0.2)"
    )
    parser.add_argument("--json", default="", metavar="FILE", help="write the results to this file, too")
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Measure, print, write; the exit status is 1 if no engine could be measured."""
    asked = [name for name in args.engines.split(",") if name]
    if unknown := [name for name in asked if name not in CANDIDATES or name == "solo"]:
        legal = ", ".join(name for name in CANDIDATES if name != "solo")
        raise UsageError(f"--engines {', '.join(unknown)} cannot be measured; the legal names are: {legal}")
    slots = sum(host.slots for host in parse_hosts(args.hosts)) if args.hosts else 2
    np = slots if args.np is None else args.np
    if np < 2:
        raise UsageError(f"-np {np} has nothing to reduce: at least 2 ranks are needed")
    report = examine(asked, np, args.hosts, args.seconds)
    show(report)
    if args.json:
        Path(args.json).write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0 if report.seconds else 1


def examine(asked: Sequence[str], np: int, hosts: str, seconds: float) -> BenchReport:
    """Measure all usable engines: one job for those that the launcher can start, one for MPI."""
    from rich.console import Console
    from rich.progress import Progress

    load = os.getloadavg()[0]
    lacks: dict[str, str] = {}
    names = [name for name in asked or CANDIDATES if name != "solo" and (asked or hosts or name != HYBRID)]
    ours = [name for name in names if name != "mpi" and not _lack(name, lacks)]
    jobs = [([f"{name}+{ACROSS}" if name == HYBRID else name for name in ours], _by_launcher)] if ours else []
    jobs += [(["mpi"], _by_mpi)] if "mpi" in names else []
    found: list[Measured] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(jobs))
        for engines, start in jobs:
            progress.update(task, description=f"measuring {', '.join(engines)} on {np} ranks")
            try:
                found.append(start(engines, np, hosts, seconds))
            except FarandoleError as error:
                lacks.update(dict.fromkeys((name.partition("+")[0] for name in engines), str(error).splitlines()[0]))
            progress.advance(task)
    return _report(found, np, load, lacks)


def _report(found: Sequence[Measured], np: int, load: float, lacks: dict[str, str]) -> BenchReport:
    cores = len(os.sched_getaffinity(0))
    if not found:
        return BenchReport(["here"] * np, load, cores, "none", "nothing could be measured", {}, {}, lacks)
    placed, usable = found[0].hosts, found[0].usable
    chosen, reason = choose("auto", placed, usable)
    seconds = {name: times for measured in found for name, times in measured.seconds.items()}
    for measured in found:
        lacks.update(measured.lacks)
    return BenchReport(placed, load, cores, chosen, reason, considered(placed, usable), seconds, lacks)


def _lack(name: str, lacks: dict[str, str]) -> bool:
    if lack := CANDIDATES[name].lack():
        lacks[name] = f"{lack}; {CANDIDATES[name].cure()}"
    return bool(lack)


def _by_launcher(engines: Sequence[str], np: int, hosts: str, seconds: float) -> Measured:
    measured: Measured = run(measure, args=(engines, seconds), np=np, hosts=hosts)[0]
    return measured


def _by_mpi(engines: Sequence[str], np: int, hosts: str, seconds: float) -> Measured:
    """Measure MPI, which needs ranks started by mpiexec: the one beside this Python, or on the ``PATH``."""
    mpi = CANDIDATES["mpi"]
    if lack := mpi.uninstalled():
        raise UsageError(f"{lack}; {mpi.cure()}")
    if hosts:
        raise UsageError("each mpirun has options of its own for hosts; without -H it is measured on this one")
    path = os.pathsep.join((str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)))
    program = shutil.which("mpiexec", path=path) or shutil.which("mpirun", path=path)
    if program is None:
        raise UsageError("there is no mpiexec and no mpirun on the path")
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        target = Path(folder) / "measured.json"
        entry = [*entry_command("farandole.launch.tools.measuring"), str(target), str(seconds), *engines]
        _run_to_end([program, "-n", str(np), *entry])
        if not target.exists():
            raise UsageError(f"{program} started no rank that measured anything")
        return msgspec.json.decode(target.read_bytes(), type=Measured)


def _run_to_end(command: Sequence[str]) -> None:
    environment = {**os.environ, "FARANDOLE_ENGINE": "mpi"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, env=environment, timeout=MPI_S, check=False, text=True, **pipes)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        raise UsageError(f"{command[0]} did not end within {MPI_S:g} s") from None
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip(" -=")]
        raise UsageError(f"{command[0]} exited with {done.returncode}: {' '.join(said[-1:])}")


def show(report: BenchReport) -> None:
    """Print the report: 80 columns, plain text in a log."""
    from rich.console import Console

    console = Console(width=WIDTH, highlight=False)
    machines = len(set(report.hosts))
    console.print(f"all-reduce of float32, {len(report.hosts)} ranks on {machines} host{'s' if machines > 1 else ''}")
    if report.load > BUSY * report.cores:
        where = f"load {report.load:.1f} on {report.cores} cores"
        console.print(f"This machine is busy ({where}): these times compare little.")
    if report.seconds:
        rows = [_row(nbytes, name, times[nbytes]) for nbytes in SIZES for name, times in report.seconds.items()]
        console.print("", _table(("", "", "median", "spread", "GB/s"), rows))
    for name, lack in report.lacks.items():
        console.print(f"{name} was not measured: {lack}", markup=False)
    console.print(f"\n--engine auto takes {report.chosen}: {report.reason}", markup=False)
    if report.considered:
        why = [(f"  {name}", problem or "can serve this job") for name, problem in report.considered.items()]
        console.print("It takes the first of these that nothing speaks against:", _table((), why))


def _row(nbytes: int, name: str, rounds: Sequence[float]) -> tuple[str, ...]:
    """Row of the table; the spread is half the interquartile range."""
    median = statistics.median(rounds)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    spread = f"±{50 * (high - low) / median:.0f}%"
    return human_bytes(nbytes), name, human_time(median), spread, f"{nbytes / median / 1e9:.2g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(headings), padding=(0, 2, 0, 0), pad_edge=False)
    for i in range(len(rows[0])):
        table.add_column(headings[i] if headings else "", justify="right" if i > 1 else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def human_bytes(nbytes: int) -> str:
    """Human-readable bytes: 4 B, 64 KiB, 16 MiB."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes} B"


def human_time(seconds: float) -> str:
    """Human-readable time in three digits: 9.12 us, 1.05 ms, 2 s."""
    for unit, factor in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds:.3g} s"
