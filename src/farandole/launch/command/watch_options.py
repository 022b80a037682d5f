"""Options of ``farandole run`` for the live view and the record of a job, and the monitor that they describe."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence

from farandole.cluster.allocation import is_batch_job
from farandole.control.monitor_messages import LOOPBACK, MonitorConfig
from farandole.errors import UsageError

RUNS = "farandole-runs"
"""Parent folder of runs with a live view but without a given folder."""

LINK = "live.link"
"""File with the link of a page while the page exists; private to the user."""


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("watching")
    group.add_argument("--live", action="store_true", help="serve a live page of the training, and print its link")
    group.add_argument(
        "--record", default="", metavar="DIR", help=f"record the run in DIR (with --live: {RUNS}/TIME-SCRIPT)"
    )
    group.add_argument("--csv", action="store_true", help="write DIR/metrics.csv as well")
    group.add_argument("--tensorboard", action="store_true", help="write event files to DIR/tensorboard as well")
    group.add_argument(
        "--live-listen", default="", metavar="HOST:PORT", help=f"address of the page (default: {LOOPBACK})"
    )
    group.add_argument(
        "--live-certificate",
        default="",
        metavar="FILE",
        help="key and certificate (PEM), for a page that other users can reach",
    )


def monitor_config(args: argparse.Namespace, command: Sequence[str], stay_s: float = 0.0) -> MonitorConfig | None:
    """The monitor described by the options, if any; raises ``UsageError`` for invalid options.

    Its page stays for ``stay_s`` after the run, unless that would block other runs (``stays_s``).
    """
    live, folder = args.live, args.record
    if (args.live_listen or args.live_certificate) and not live:
        raise UsageError("--live-listen and --live-certificate are of a page: add --live")
    if (args.csv or args.tensorboard) and not (live or folder):
        raise UsageError("--csv and --tensorboard are written beside the record of a run: add --record DIR")
    if not live and not folder:
        return None
    folder = os.path.abspath(folder or os.path.join(RUNS, run_name(command, time.localtime())))
    return MonitorConfig(
        folder,
        list(command),
        live,
        args.live_listen or LOOPBACK,
        os.path.abspath(args.live_certificate) if args.live_certificate else "",
        os.path.join(folder, LINK) if live else "",
        args.csv,
        args.tensorboard,
        stay_s=stays_s(stay_s, args.live_listen, os.environ),
    )


def stays_s(asked_s: float, listen: str, variables: Mapping[str, str]) -> float:
    """Time for which a page stays after its run.

    0 in a batch job, whose nodes it would keep, and with a fixed port, which the next run needs.

    >>> stays_s(60.0, "", {}), stays_s(60.0, "127.0.0.1:8899", {}), stays_s(60.0, "", {"SLURM_JOB_ID": "7"})
    (60.0, 0.0, 0.0)
    """
    is_in_the_way = is_batch_job(variables) or not (listen or LOOPBACK).endswith(":0")
    return 0.0 if is_in_the_way else asked_s


def run_name(command: Sequence[str], at: time.struct_time) -> str:
    """Default name of a run: its start time and script.

    >>> run_name(["python", "-u", "examples/train.py", "--epochs", "3"], time.gmtime(0))
    '19700101-000000-train'
    """
    scripts = [word for word in command if word.endswith((".py", ".sh"))] or command[:1]
    stem = os.path.splitext(os.path.basename(scripts[0]))[0] if scripts else "run"
    return f"{time.strftime('%Y%m%d-%H%M%S', at)}-{stem}"
