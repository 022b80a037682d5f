"""``farandole horovodrun``: Horovod's command line, for scripts and habits that know it.

    farandole horovodrun -np 4 -H localhost:4 --cycle-time-ms 5 python train.py

It is ``farandole run --horovod`` with more flags: flags without meaning here are accepted, and printed with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from typing import Any, NamedTuple, final

from farandole.launch.command import command
from farandole.launch.command.options import Parser, add_knobs, knob_arguments, read_file
from farandole.launch.command.watch_options import add_watch_options
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.horovod_site import SPOKEN
from farandole.launch.hosts.plan import Job
from farandole.settings import Settings
from farandole.version import __version__


@final
class Foreign(NamedTuple):
    """Flags of Horovod that are accepted without effect: their number of values (0: a switch), and why.

    Without a reason they request the normal behaviour, and no line is printed.
    """

    why: str
    values: int
    flags: tuple[str, ...]


_CHOSEN = "the way of moving bytes is chosen, see --engine"

FOREIGN = (
    Foreign("", 0, (
        "--gloo", "--disable-cache", "--no-autotune", "--no-hierarchical-allreduce", "--no-hierarchical-allgather",
        "--no-torus-allreduce", "--log-with-timestamp", "--no-log-hide-timestamp",
    )),
    Foreign("messages are sent when there is something to say, nobody waits for a cycle", 1, ("--cycle-time-ms",)),
    Foreign(_CHOSEN, 0, (
        "--hierarchical-allreduce", "--hierarchical-allgather", "--torus-allreduce", "--mpi", "--jsrun", "--tcp",
    )),
    Foreign("nothing is tuned while a job runs", 0, ("--autotune",)),
    Foreign("nothing is tuned while a job runs", 1, (
        "--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise",
    )),
    Foreign("log lines always have the time", 0, ("--log-without-timestamp", "--log-hide-timestamp")),
    Foreign("no worker is started by MPI", 0, ("--mpi-threads-disable", "--no-mpi-threads-disable")),
    Foreign("no worker is started by MPI", 1, ("--mpi-args", "--binding-args")),
    Foreign("NCCL chooses its streams", 1, ("--num-nccl-streams",)),
    Foreign("no thread of ours is pinned", 1, ("--thread-affinity",)),
    Foreign("waits end at --start-timeout and --stall-check-shutdown-time-seconds", 1, ("--gloo-timeout-seconds",)),
)  # fmt: skip


ACTED_ON = (
    "--version", "--check-build", "--num-proc", "--hosts", "--hostfile", "--ssh-port", "--ssh-identity-file",
    "--output-filename", "--prefix-output-with-timestamp", "--verbose", "--config-file", "--start-timeout",
    "--network-interfaces", "--fusion-threshold-mb", "--cache-capacity", "--min-num-proc", "--max-num-proc",
    "--slots-per-host", "--host-discovery-script", "--elastic-timeout", "--reset-limit", "--blacklist-cooldown-range",
    "--timeline-filename", "--timeline-mark-cycles", "--no-stall-check", "--stall-check-warning-time-seconds",
    "--stall-check-shutdown-time-seconds", "--log-level",
)  # fmt: skip
"""Horovod's other flags: an abbreviation prefers them to flags that only Farandole has."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``horovodrun`` to the commands."""
    parser = subparsers.add_parser(
        "horovodrun",
        help="run a script written for Horovod, with horovodrun's flags",
        usage="farandole horovodrun -np N [options] COMMAND ...",
        description="Runs COMMAND as 'farandole run --horovod' does. Flags of horovodrun that mean\n"
        "nothing here are accepted; a line says so.",
    )
    parser.add_argument("-v", "--version", action="version", version=f"{SPOKEN} (farandole {__version__})")
    parser.add_argument("-cb", "--check-build", action=_CheckBuild, nargs=0, help="what is usable here, and why not")
    command.add_job_options(parser)
    add_watch_options(parser)
    _add_foreign(parser)
    add_knobs(parser)
    parser.add_argument("command", nargs=argparse.PARSER, metavar="COMMAND", help="command that every worker runs")
    parser.set_defaults(main=main, foreign=[])
    assert isinstance(parser, Parser)
    parser.abbreviate([*ACTED_ON, *(flag for foreign in FOREIGN for flag in foreign.flags)])


def main(args: argparse.Namespace) -> int:
    """Run the job described by ``args``; return its exit status."""
    job = asked(args)
    for line in without_meaning(args.foreign):
        print(f"farandole horovodrun: {line}", file=sys.stderr)
    return command.run_job(job)


def asked(args: argparse.Namespace) -> Job | ElasticJob:
    """The job described by ``args``; raises ``UsageError`` if they are invalid."""
    words = args.command[1:] if args.command[0] == "--" else args.command
    file = read_file(args.config_file) if args.config_file else None
    return command.job(args, words, Settings.resolve({**knob_arguments(args), "horovod": True}, file, os.environ))


def without_meaning(flags: Collection[str]) -> list[str]:
    """One line for each reason why some of ``flags`` have no effect."""
    lines = []
    for why in dict.fromkeys(foreign.why for foreign in FOREIGN if foreign.why):
        mine = [flag for foreign in FOREIGN if foreign.why == why for flag in foreign.flags if flag in flags]
        if mine:
            lines.append(f"{', '.join(mine)}: accepted without effect, {why}")
    return lines


def _add_foreign(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("accepted without effect")
    for foreign in FOREIGN:
        spellings = [foreign.flags] if foreign.flags[0].count("-") == 1 else [(flag,) for flag in foreign.flags]
        for flags in spellings:
            group.add_argument(*flags, action=_Note, nargs=foreign.values, metavar="X" if foreign.values else None,
                               default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # fmt: skip


@final
class _Note(argparse.Action):
    """Action that records a flag without effect."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Add its longest spelling."""
        namespace.foreign = [*namespace.foreign, self.option_strings[-1]]


@final
class _CheckBuild(argparse.Action):
    """Action that prints the report of ``farandole check``, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Print and exit."""
        from farandole.launch.tools.check import examine, report

        parser.exit(report(examine()))
