"""The command ``farandole run``: its options, and the job that they describe.

parser = argparse.ArgumentParser()
add_parser(parser.add_subparsers())
args = parser.parse_args(["run", "-np", "4", "python", "train.py"])
sys.exit(main(args))
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import typing

import msgspec

from farandole.errors import UsageError
from farandole.launch.agents.ssh import Ssh
from farandole.launch.command.options import add_knobs, knob_arguments, read_file
from farandole.launch.command.watch_options import add_watch_options, monitor_config
from farandole.launch.hosts import plan
from farandole.launch.hosts.elastic_job import ElasticJob, elastic_job
from farandole.launch.hosts.horovod_site import HOROVOD_SITE
from farandole.launch.hosts.placement import read_hosts, where
from farandole.launch.hosts.starters import LauncherName, Means
from farandole.launch.job.launcher import Launcher
from farandole.runtime.session import mllog
from farandole.settings import Settings

EXAMPLES = """\
examples:
  farandole run -np 4 python train.py --epochs 10
  farandole run -np 4 --output-filename logs python train.py
  farandole run -np 2 --horovod python script_written_for_horovod.py
  farandole run --min-np 2 --max-np 8 --hostfile hosts.txt python train.py
  farandole run -np 4 --live python train.py
  farandole run -np 4 --stage /lustre/set=/local/set python train.py /local/set

Each line that a worker prints begins with its rank, [2]<stdout>: or
[2]<stderr>:. The first worker that fails ends the job, and its exit code is
that of the job; 128+N stands for signal N. Ctrl-C gives the workers time to
end; the second Ctrl-C kills them. USR1 and USR2 are passed on to workers that
handle them. Processes that a worker leaves behind are ended, too. Workers have
no standard input.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run`` to the commands."""
    parser = subparsers.add_parser(
        "run",
        help="run a command on N workers",
        usage="farandole run -np N [options] COMMAND ...",
        description=EXAMPLES,
    )
    add_job_options(parser)
    parser.add_argument(
        "--run-folder",
        default="",
        metavar="DIR",
        help="accept nodes that other jobs lend to this elastic job: farandole join DIR",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="SRC=DST",
        help="copy a folder to every host first; each byte is read from SRC once (can be repeated)",
    )
    add_watch_options(parser)
    add_knobs(parser)
    parser.add_argument("command", nargs=argparse.PARSER, metavar="COMMAND", help="command that every worker runs")
    parser.set_defaults(main=main)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the number of workers, their hosts and their output; names as in Horovod."""
    add_size_option(parser)
    worker_ids = parser.add_mutually_exclusive_group()
    worker_ids.add_argument(
        "-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and slots (default: Slurm's allocation, or localhost:N)"
    )
    worker_ids.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="file of hosts and slots, one line each: HOST slots=N"
    )
    parser.add_argument(
        "--launcher",
        choices=typing.get_args(LauncherName),
        default="auto",
        help="how agents start on other hosts (default: auto: srun inside a Slurm allocation, else ssh)",
    )
    parser.add_argument("-p", "--ssh-port", type=int, metavar="PORT", help="port of the ssh servers")
    parser.add_argument("-i", "--ssh-identity-file", default="", metavar="FILE", help="private key for ssh")
    parser.add_argument(
        "--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="as in ssh_config (can be repeated)"
    )
    add_output_options(parser)


def add_size_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of workers."""
    parser.add_argument("-np", "--num-proc", type=int, dest="np", metavar="N", help="number of workers")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the output and for the settings file."""
    parser.add_argument(
        "--output-filename",
        default="",
        metavar="DIR",
        help="write output to DIR/rank.<rank>/stdout and stderr, not to this terminal",
    )
    parser.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="timestamps",
        help="put the time at the beginning of every line",
    )
    parser.add_argument("--verbose", action="store_true", help="print which process starts on which host")
    parser.add_argument("--config-file", metavar="FILE", help='settings in TOML: engine = "shm"')


def main(args: argparse.Namespace) -> int:
    """Run the job described by ``args``; return its exit status."""
    command = args.command[1:] if args.command[0] == "--" else args.command
    settings = Settings.resolve(
        knob_arguments(args), read_file(args.config_file) if args.config_file else None, os.environ
    )
    asked = job(args, command, settings)
    if args.stage:
        from farandole.launch.command.staging import require_pairs, stage_first  # only this needs the data extra

        require_pairs(args.stage)
        status, asked = stage_first(asked, args.stage)
        if status:
            return status
    return run_job(asked)


def job(args: argparse.Namespace, command: list[str], settings: Settings) -> plan.Job | ElasticJob:
    """The job described by the options of ``add_job_options``; raises ``UsageError`` if they are invalid."""
    _require_a_folder()
    means = Means(args.launcher, Ssh(args.ssh_port, args.ssh_identity_file, tuple(args.ssh_option)))
    here = socket.gethostname()
    asked = plan.Job(
        command,
        (),
        settings,
        output_dir=args.output_filename,
        timestamps=args.timestamps,
        verbose=args.verbose,
        monitor=monitor_config(args, command, settings.live_stay_s),
    )
    folder = getattr(args, "run_folder", "")  # horovodrun has no such option
    if settings.is_elastic:
        return elastic_job(asked, args.np, args.hosts or "", args.hostfile or "", means, os.environ, here, folder)
    if folder:
        raise UsageError(
            "--run-folder: nodes are lent to elastic jobs; say how many workers with --min-np and --max-np"
        )
    named = read_hosts(args.hosts or "", args.hostfile or "")
    hosts, starter = where(args.np, named, means, os.environ, here)
    return msgspec.structs.replace(asked, hosts=hosts, starter=starter)


def run_job(job: plan.Job | ElasticJob) -> int:
    """Run a job to its end in this process, print why if it failed, and return its exit status."""
    asked = job.job if isinstance(job, ElasticJob) else job
    log = asked.settings.mllog
    if log:
        mllog.begin(log)
    if asked.settings.horovod:
        _say_which_horovod()
    if isinstance(job, ElasticJob):
        from farandole.launch.job.elastic_launcher import ElasticLauncher  # not imported for static jobs

        result = ElasticLauncher(job).run()
    else:
        result = Launcher(job, owns_process=True).run()
    if log:
        mllog.complete(log, result.status)
    if result.words:
        print(f"farandole: {result.words}", file=sys.stderr)
    return result.status


def _require_a_folder() -> None:
    """Raise ``UsageError`` if the current folder, in which workers start, does not exist."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the current folder, where the workers are to run, is not there any more ({error.strerror}): "
            "cd to another one, or to its path again if it was made anew"
        ) from error


def _say_which_horovod() -> None:
    """Print which ``horovod`` the workers import, if the real one is installed, too."""
    real = importlib.util.find_spec("horovod")
    if real is not None and real.origin and not real.origin.startswith(HOROVOD_SITE):
        print(f"farandole: 'import horovod' is Farandole in this job, not {real.origin} (--horovod)", file=sys.stderr)
