"""``farandole runs``: list, compare, plot and open recorded runs.

    farandole runs list                             those below farandole-runs
    farandole runs compare runs/a runs/b            commands, versions, seeds and last numbers that differ
    farandole runs plot runs/a runs/b --name loss   their curves, as a PNG
    farandole runs open runs/a                      the page of one that is over, or goes on
    farandole runs open runs/a runs/b               a page with the curves of both over each other

Everything is read from the folders of the runs, also while the runs go on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich import box
from rich.console import Console
from rich.table import Column, Table

from farandole.control.private_file import NotPrivateError, read_private
from farandole.errors import UsageError
from farandole.monitor.access import PageKeys, listening
from farandole.monitor.comparison import began, differences, end, lasted, names_of, overlaid, trials_told
from farandole.monitor.decimation import Series
from farandole.monitor.folder import (
    INFO,
    METRICS,
    OUTPUT,
    STREAMS,
    MemberRecord,
    PointRecord,
    TrialRecord,
    read_info,
    read_records,
)
from farandole.monitor.hub import Hub
from farandole.monitor.latest import Latest

RUNS, LINK = "farandole-runs", "live.link"

NO_END = "The run was killed then, or goes on."

ANSWERS_S = 2.0
"""Time for the page of a run that goes on to take a connection."""

TRIALS, MOST_TOLD = "trials", 8
"""Name of the plot of a search's trials, and number of trials in its legend."""

EXAMPLES = """\
examples:
  farandole runs list
  farandole runs compare runs/a runs/b
  farandole runs plot runs/a runs/b --name loss --out loss.png
  farandole runs open runs/a
  farandole runs open runs/a runs/b
  farandole runs mllog-check result_0.txt
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``runs`` to the commands."""
    parser = subparsers.add_parser(
        "runs", help="list, compare, plot and open recorded runs", usage="farandole runs VERB ...", description=EXAMPLES
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    told = verbs.add_parser("list", help="the runs in a folder", usage="farandole runs list [FOLDER]")
    told.add_argument("folder", nargs="?", default=RUNS, metavar="FOLDER", help=f"where they are (default: {RUNS})")
    told.set_defaults(main=_list)
    told = verbs.add_parser("compare", help="what differs between runs", usage="farandole runs compare RUN RUN ...")
    told.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    told.set_defaults(main=_compare)
    told = verbs.add_parser("plot", help="draw their curves", usage="farandole runs plot RUN ... [--name NAME]")
    told.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    told.add_argument(
        "--name", action="append", default=[], metavar="NAME", help="a metric (default: all), also of trials"
    )
    told.add_argument("--out", default="runs.png", metavar="FILE", help="the picture (default: runs.png)")
    told.set_defaults(main=_plot)
    told = verbs.add_parser("open", help="serve the page of a run, or of several", usage="farandole runs open RUN ...")
    told.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run; of several curves are over each other")
    told.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="where (default: 127.0.0.1:0)")
    told.set_defaults(main=_open)
    told = verbs.add_parser("mllog-check", help="check a log of MLPerf", usage="farandole runs mllog-check FILE")
    told.add_argument("file", metavar="FILE", help="of farandole run --mllog; exit status 1 if it breaks a rule")
    told.add_argument("--submission", action="store_true", help="also what a submission must say of itself")
    told.set_defaults(main=_check_mllog)


def loaded(folder: str | os.PathLike[str]) -> Hub:
    """The state of a recorded run, as its page last showed it."""
    info = read_info(folder)
    hub = Hub(info)
    for record in read_records(folder):
        hub.add_record(record)
    for stream, name in enumerate(STREAMS):
        path = Path(folder) / OUTPUT / name
        if path.exists():
            hub.print(info.ended_s, stream, path.read_text(errors="replace").splitlines())
    if info.status is not None:
        hub.end(info.status, info.words, info.ended_s)
    return hub


def curves(folder: str | os.PathLike[str]) -> dict[str, Series]:
    """Curves of a run over all its ranks, by the names of metrics."""
    found: dict[str, Series] = {}
    for record in read_records(folder):
        for point in record.points if isinstance(record, PointRecord) else ():
            for name, value in point.values.items():
                found.setdefault(name, Series()).add(point.step, point.time_s, value)
    return found


def trial_curves(folder: str | os.PathLike[str]) -> dict[str, dict[int, Series]]:
    """Curves of the trials of a search, by name and trial number: values as ``TRIALS``, metrics by their names."""
    found: dict[str, dict[int, Series]] = {}
    for record in read_records(folder):
        if isinstance(record, TrialRecord):
            for name, points in {TRIALS: record.points, **record.metrics}.items():
                for epoch, value in points:
                    found.setdefault(name, {}).setdefault(record.trial, Series()).add(epoch, record.time_s, value)
    return found


# -- the verbs --------------------------------------------------------------------------------------------------------


def _check_mllog(args: argparse.Namespace) -> int:
    from farandole.monitor.mllog_rules import broken

    found = broken(Path(args.file).read_bytes(), args.submission)
    for each in found:
        print(f"{each.rule}: {each.text}")
    print(f"{args.file}: {f'{len(found)} rules are broken' if found else 'all rules are kept'}")
    return 1 if found else 0


def _list(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    runs = sorted(path.parent for path in folder.glob(f"*/{INFO}")) if folder.is_dir() else []
    if not runs:
        raise UsageError(f"no run is recorded in {folder}: record one with farandole run --record {folder}/a ...")
    table = _table("run", "began", "lasted", "ranks", "steps", "loss", "end")
    searches = _table("search", "began", "lasted", "trials", "epochs", "best", "end")
    for run in runs:
        info = read_info(run)
        if info.search:
            searches.add_row(run.name, began(info), lasted(info), *trials_told(run, info), end(info))
            continue
        size, step, latest = 0, 0, Latest()
        for record in read_records(run):
            latest.add_record(record)
            size = max(size, len(record.hosts)) if isinstance(record, MemberRecord) else size
            for point in record.points if isinstance(record, PointRecord) else ():
                step = max(step, point.step)
        loss = f"{latest.mean('loss').value:.4g}" if "loss" in latest else ""
        table.add_row(run.name, began(info), lasted(info), str(size), str(step), loss, end(info))
    for each in (table, searches):
        if each.row_count:
            Console(markup=False, highlight=False).print(each)
    return 0


def _compare(args: argparse.Namespace) -> int:
    table = Table("", *names_of(args.runs), box=box.SIMPLE_HEAD)
    for name, values in differences(args.runs):
        table.add_row(name, *values)
    Console(markup=False, highlight=False).print(table)
    return 0


def _plot(args: argparse.Namespace) -> int:
    try:
        import matplotlib as mpl

        mpl.use("Agg")  # before pyplot, which would ask for a display
        from matplotlib import pyplot as plt
    except ModuleNotFoundError as error:
        raise UsageError("farandole runs plot needs matplotlib: pip install 'farandole[plot]'") from error
    found, trials = {run: curves(run) for run in args.runs}, {run: trial_curves(run) for run in args.runs}
    known = list(dict.fromkeys(name for each in found.values() for name in each))
    known += dict.fromkeys(name for each in trials.values() for name in each if name not in known)
    names = args.name or known
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no run has logged {unknown[0]!r}; they have {', '.join(known) or 'nothing'}")
    figure, axes = plt.subplots(len(names), 1, figsize=(8, 2.6 * len(names)), squeeze=False, layout="constrained")
    for axis, name in zip(axes[:, 0], names, strict=True):
        for run, each in found.items():
            if name in each:
                _draw(axis, each[name], Path(run).name)
            for number, series in trials[run].get(name, {}).items():
                _draw(axis, series, f"{Path(run).name}, trial {number}" if number < MOST_TOLD else None)
        axis.set(title=name, xlabel="epoch" if any(name in each for each in trials.values()) else "step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(args.out, dpi=120)
    plt.close(figure)
    print(f"{args.out}: {', '.join(names)}")
    return 0


def _draw(axis: Any, series: Series, label: str | None) -> None:
    steps = [each.number * series.width for each in series.bins]
    [line] = axis.plot(steps, [each.mean for each in series.bins], label=label, linewidth=1.4)
    lows, highs = ([getattr(each, side) for each in series.bins] for side in ("low", "high"))
    axis.fill_between(steps, lows, highs, color=line.get_color(), alpha=0.2, linewidth=0)


def _open(args: argparse.Namespace) -> int:
    run, *others = args.runs
    info = read_info(run)
    if not others and info.status is None and (link := _link(Path(run))):
        print(link)
        return 0
    hub = overlaid(args.runs) if others else loaded(run)
    if not others and info.status is None:
        log = Path(run) / METRICS
        hub.end(None, NO_END, log.stat().st_mtime if log.exists() else info.began_s)
    try:
        asyncio.run(_serve(hub, args.listen))
    except ModuleNotFoundError as error:
        raise UsageError("farandole runs open needs tornado: pip install 'farandole[live]'") from error
    return 0


def _link(run: Path) -> str:
    """Link of the page of a run that goes on; "" if the run and its page were killed."""
    try:
        link = read_private(run / LINK).decode().strip()
    except FileNotFoundError:
        return ""
    except (OSError, NotPrivateError) as error:
        raise UsageError(f"the link of {run} cannot be read: {error}") from error
    at = urlsplit(link)
    try:
        socket.create_connection((at.hostname or "", at.port or 0), ANSWERS_S).close()
    except OSError:
        return ""
    return link


async def _serve(hub: Hub, listen: str) -> None:
    """Serve the page of a run that is over, until Ctrl-C."""
    from farandole.monitor.server import PageServer

    host, port, tls = listening(listen, "")
    keys = PageKeys.new()
    server = PageServer(hub, keys, None)
    try:
        port = server.listen(host, port, tls)
    except OSError as error:
        raise UsageError(f"--listen {listen}: {error.strerror}") from error
    over = asyncio.Event()
    # Handlers of the loop, which run between its callbacks: a message that is being sent is sent whole.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    print(f"{keys.link(f'http://{host}:{port}')}\nCtrl-C ends it", flush=True)
    await over.wait()
    await server.close()


def _table(*titles: str) -> Table:
    """A table that never breaks names, which other verbs need whole; if it is too wide, it breaks dates and ends."""
    widths = {"began": len("2026-11-26"), "end": len("status 130")}
    columns = [Column(title, no_wrap=title not in widths, min_width=widths.get(title)) for title in titles]
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
