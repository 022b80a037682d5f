"""``farandole submit``: make a Slurm batch script from the options of ``farandole run``, and submit it.

    farandole submit -np 8 -N 2 -t 1:00:00 python train.py           prints the number of the job
    farandole submit --print -np 8 -N 2 -t 1:00:00 python train.py   prints the script, and submits nothing

``sbatch`` reads the script from standard input. Variables of a surrounding job are removed: ``sbatch`` would take them
as options of the new job.

Wait for a Slurm job: print its output meanwhile, and return its exit status.

    follow("812", os.environ, sys.stdout.buffer)        # 0

The wait includes requeued runs of the job. Slurm does not report the end or the output, so both are polled. An
interrupt ends the wait, and the job goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, final

from farandole.errors import FarandoleError, UsageError
from farandole.launch.batch.defaults import files, pairs, with_defaults
from farandole.launch.batch.lease_submission import LeaseSubmission, add_lease_options
from farandole.launch.batch.script import BatchJob, batch_script
from farandole.launch.batch.submission import said, submitted
from farandole.launch.command.command import add_output_options, add_size_option
from farandole.launch.command.options import Parser, add_knobs, knob_arguments, read_file
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.job_arrays import read_supply
from farandole.launch.leases.script import lease_script
from farandole.launch.leases.slurm_words import has_ended
from farandole.launch.sbatch.options import BatchOptions
from farandole.settings import Settings

LOOK_S, LONGEST_LOOK_S = 1.0, 15.0
"""Interval of job queries, at first and at most: each costs slurmctld a call."""

READ_S = 0.2
"""Interval of reads of the output."""

UNANSWERED_S = 600.0
"""Time without an answer of Slurm after which ``follow`` gives up."""


@final
class SlurmJob(NamedTuple):
    """State of a job in Slurm's terms, its exit status, and its output file."""

    words: str
    status: int
    output: str

    @classmethod
    def read(cls, text: str) -> SlurmJob:
        r"""Parse the output of ``scontrol show job``.

        >>> SlurmJob.read("JobState=FAILED Reason=NonZeroExitCode\n ExitCode=3:0\n   StdOut=/home/me/a b.out\n")
        SlurmJob(words='FAILED', status=3, output='/home/me/a b.out')
        """
        state, output = re.search(r"\bJobState=(\w+)", text), re.search(r"^\s*StdOut=(.*)$", text, re.MULTILINE)
        codes = re.search(r"\bExitCode=(\d+):(\d+)", text)
        code, signal = map(int, codes.groups()) if codes else (0, 0)
        words = state[1] if state else ""
        status = code or (128 + signal if signal else int(words != "COMPLETED"))
        return cls(words, status, output[1] if output else "")


@final
class _Tail:
    """Output of a job, from the beginning on; a truncated file is read from the beginning again."""

    def __init__(self, to: BinaryIO) -> None:
        self._to, self._read_bytes = to, 0

    def copy(self, path: str) -> None:
        """Print new output."""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if Path(path).stat().st_size < self._read_bytes:
                self._read_bytes = 0
            file.seek(self._read_bytes)
            while block := file.read(2**16):
                self._read_bytes += len(block)
                self._to.write(block)
        self._to.flush()


def follow(number: str, variables: Mapping[str, str], to: BinaryIO) -> SlurmJob:
    """Wait for the end of a job; raises ``FarandoleError`` if its state is unknown."""
    tail, output, pause_s, answered_s = _Tail(to), "", LOOK_S, time.monotonic()
    while True:
        text, why = said(["scontrol", "show", "job", number], variables)
        if text:
            state, answered_s = SlurmJob.read(text), time.monotonic()
            output = state.output or output
            tail.copy(output)
            if has_ended(state.words):
                return state
        elif time.monotonic() - answered_s > UNANSWERED_S or "Invalid job id" in why:
            raise FarandoleError(f"the end of job {number} is not known: {why}; see: sacct -j {number}; {output}")
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            time.sleep(READ_S)
            tail.copy(output)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


EXAMPLES = """\
examples:
  farandole submit -np 8 -N 2 -t 1:00:00 python train.py
  farandole submit -np 4 --gres gpu:4 -c 8 -p gpu -A project42 python train.py
  farandole submit --min-np 2 --max-np 8 -t 24:00:00 python train.py
  farandole submit --min-np 2 --max-np 16 --lease 1x4@1h --budget 200nh python train.py
  farandole submit --wait -np 8 -N 2 python test.py && echo well
  farandole submit --print -np 8 -N 2 python train.py > train.sbatch

Writes a batch script and submits it with sbatch. Inside of it, 'farandole run'
takes the hosts from Slurm. A job with --min-np leaves before its time is up,
saves a checkpoint if the script does, and is queued again. With --lease it has
--min-np workers, and further jobs lend it nodes when that pays: farandole ps.
Defaults of a site or a user: /etc/farandole/submit.toml and ~/.config/farandole/submit.toml.
"""

OPTIONS = (
    (("-N", "--nodes"), int, "N", "number of nodes; each has as many workers"),
    (("-t", "--time"), str, "TIME", "time limit: 90min, 1h30min, 2d, or in Slurm's format (minutes, 1:30:00, 1-12)"),
    (("-p", "--partition"), str, "NAME", "partition, or several with commas"),
    (("-A", "--account"), str, "NAME", "account to be charged"),
    (("-q", "--qos"), str, "NAME", "quality of service"),
    (("-c", "--cpus-per-task"), int, "N", "cores of each worker (Slurm's default: 1)"),
    (("--mem",), str, "SIZE", "memory of each node: 64G"),
    (("--gres",), str, "LIST", "generic resources of each node: gpu:4"),
    (("--gpus-per-node",), str, "N", "GPUs of each node"),
    (("-J", "--job-name"), str, "NAME", "name of the job (default: that of the script)"),
    (("-o", "--output"), str, "FILE", "output file of the job (default: %x-%j.out)"),
    (("--notice",), int, "SECONDS", "time to leave before the end of an elastic job (default: a quarter, 300 at most)"),
)
"""Flags, type, metavar and help of the options with one value in ``BatchOptions``."""

LISTS = (
    ("--sbatch", "sbatch", "OPTION", "any other option: --sbatch=--constraint=a100"),
    ("--module", "modules", "NAME", "module to load first"),
    ("--setup", "setup", "LINE", "line of shell to run first: 'source venv/bin/activate'"),
    ("--env", "environment", "NAME=VALUE", "variable to set first"),
)
"""Flag, field, metavar and help of the options that can be repeated."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``submit`` to the commands."""
    parser = subparsers.add_parser(
        "submit",
        help="run a command on N workers, as a job of Slurm",
        usage="farandole submit -np N [options] COMMAND ...",
        description=EXAMPLES,
    )
    parser.add_argument("--print", action="store_true", dest="prints", help="print the script, and submit nothing")
    parser.add_argument("--test-only", action="store_true", help="ask Slurm whether it would accept the job, and when")
    parser.add_argument("--wait", action="store_true", help="print the output of the job; exit with its exit status")
    add_batch_options(parser.add_argument_group("the job, in Slurm's words"))
    add_lease_options(parser)
    _add_run_options(parser)
    parser.add_argument("command", nargs=argparse.PARSER, metavar="COMMAND", help="command that every worker runs")
    parser.set_defaults(main=main)


def add_batch_options(group: argparse._ArgumentGroup, without: Collection[str] = ()) -> None:
    """Add the options of batch scripts, but those whose long flag is in ``without``."""
    for flags, kind, metavar, told in OPTIONS:
        if flags[-1] not in without:
            group.add_argument(*flags, type=kind, metavar=metavar, default=None, help=told.replace("%", "%%"))
    for flag, field, metavar, told in LISTS:
        group.add_argument(flag, dest=field, action="append", default=[], metavar=metavar, help=f"{told} (repeatable)")


def main(args: argparse.Namespace) -> int:
    """Submit the job described by ``args``, or print its script; return the exit status."""
    asked, (fewest, most) = job(args, os.environ)
    if args.lease:
        return _submit_leases(LeaseSubmission.of(args, asked, (fewest, most), Path.home()), args)
    script = batch_script(asked)
    if args.prints:
        print(script, end="")
        return 0
    words = submitted(script, ["--test-only"] if args.test_only else ["--parsable"], os.environ)
    if args.test_only:
        print(words)
        return 0
    number = words.partition(";")[0]
    output = asked.options.output.replace("%x", asked.name).replace("%j", number)
    told = f"submitted job {number}; see it with: squeue -j {number}; tail -F {output}; end it with: scancel {number}"
    print(told, file=sys.stderr if args.wait else sys.stdout, flush=True)
    return _wait(number) if args.wait else 0


def _wait(number: str) -> int:
    """Print the output of a job until it has ended; return its exit status."""
    try:
        state = follow(number, os.environ, sys.stdout.buffer)
    except KeyboardInterrupt:
        print(f"farandole submit: job {number} goes on; end it with: scancel {number}", file=sys.stderr)
        raise
    if state.words != "COMPLETED":
        print(f"farandole submit: job {number} has ended ({state.words})", file=sys.stderr)
    return state.status


def _submit_leases(submission: LeaseSubmission, args: argparse.Namespace) -> int:
    if args.test_only:
        for script in (batch_script(submission.lead), lease_script(submission.leases)):
            print(submitted(script, ["--test-only"], os.environ))
    elif args.prints:
        print(submission.text(), end="")
    else:
        for line in submission.submit(os.environ):
            print(line, file=sys.stderr if args.wait else sys.stdout, flush=True)
        if args.wait:
            return _wait(read_supply(RunFolder(submission.folder)).lead)
    return 0


def job(args: argparse.Namespace, variables: Mapping[str, str]) -> tuple[BatchJob, tuple[int, int]]:
    """The job described by ``args``, with its fewest and most workers; raises ``UsageError`` if it is invalid."""
    command = args.command[1:] if args.command[0] == "--" else args.command
    settings = Settings.resolve(knob_arguments(args), read_file(args.config_file) if args.config_file else None, {})
    workers = (settings.max_np or args.np or settings.min_np) if settings.is_elastic else args.np
    if not workers or workers < 1:
        raise UsageError("how many workers? write -np N, or --min-np N and --max-np N for a job that may shrink")
    options = batch_options(args, variables)
    asked = BatchJob(command, list(_run_options(args)), workers, options, settings.is_elastic, *own_launcher())
    return asked, (settings.min_np, settings.max_np)


def own_launcher() -> tuple[str, tuple[str, ...]]:
    """Folder of this Python's commands, for the ``PATH`` of a batch script, and the command of Farandole."""
    folder = Path(sys.executable).parent
    is_installed = (folder / "farandole").exists()
    return str(folder), ("farandole",) if is_installed else (sys.executable, "-m", "farandole")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``farandole run`` that a batch script can pass on; Slurm places the workers."""
    add_size_option(parser)
    add_output_options(parser)
    add_knobs(parser)


def _run_options(args: argparse.Namespace) -> Iterator[str]:
    """The given options of ``farandole run``, as command-line words."""
    parser = Parser(add_help=False)
    _add_run_options(parser)
    for action in parser._actions:
        value = getattr(args, action.dest)
        if value == action.default or value is None:
            continue
        if isinstance(action, argparse.BooleanOptionalAction):
            yield next(flag for flag in action.option_strings if flag.startswith("--no-") is not value)
        elif action.nargs == 0:
            if value == action.const:
                yield action.option_strings[-1]
        else:
            yield from [action.option_strings[0], *map(str, value if isinstance(value, list | tuple) else [value])]


def batch_options(args: argparse.Namespace, variables: Mapping[str, str]) -> BatchOptions:
    """Options of ``add_batch_options``, merged with the defaults of site and user."""
    asked: dict[str, Any] = {}
    for flags, *_ in OPTIONS:
        key = flags[-1].removeprefix("--")
        if (value := getattr(args, key.replace("-", "_"), None)) is not None:
            asked[key] = value
    asked |= {field: getattr(args, field) for _, field, *_ in LISTS if field != "environment" and getattr(args, field)}
    if args.environment:
        asked["environment"] = pairs(args.environment)
    return with_defaults(asked, files(variables))
