"""The command line of Farandole, one function for all commands.

main(["run", "-np", "4", "python", "train.py"])      # returns the exit status
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from farandole.control.process import open_standard_streams
from farandole.errors import FarandoleError, UsageError
from farandole.launch.command.options import USAGE_ERROR, Parser
from farandole.version import __version__

COMMANDS = {
    "run": "farandole.launch.command.command",
    "submit": "farandole.launch.batch.submit",
    "join": "farandole.launch.leases.join",
    "ps": "farandole.launch.leases.commands",
    "scale": "farandole.launch.leases.commands",
    "hold": "farandole.launch.leases.commands",
    "release": "farandole.launch.leases.commands",
    "stop": "farandole.launch.leases.commands",
    "runs": "farandole.monitor.runs",
    "plan": "farandole.launch.leases.plan_command",
    "data": "farandole.data.tools.command",
    "search": "farandole.search.command",
    "predict": "farandole.predict.command",
    "models": "farandole.models.command",
    "check": "farandole.launch.tools.check",
    "bench": "farandole.launch.tools.bench",
    "horovodrun": "farandole.launch.command.horovodrun",
    "horovod": "farandole.launch.tools.horovod_command",
}
"""Modules with ``add_parser(subparsers)``, which sets ``main``, a function from parsed arguments to exit status."""

DESCRIPTION = """\
Data-parallel deep learning, in the words of Horovod.

  farandole run -np 4 python train.py     train on four workers
  farandole submit -np 8 python train.py  the same, as a job of Slurm
  farandole ps                            how runs with leases stand
  farandole plan --trace sacct.txt        what a training on leases would do
  farandole data plan /lustre/set ...     who would read which data, and when
  farandole search train.py space.toml    search for hyper-parameters
  farandole predict runs/one runs/two     how a training would scale
  farandole runs list                     runs that were recorded
  farandole models list                   models with a fact sheet
  farandole check                         what is usable here, and why not
  farandole bench                         how fast the engines are here
  farandole horovod install               let 'import horovod' mean Farandole
  farandole COMMAND --help                more about a command
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; usage errors print what to type, and return exit status 2."""
    open_standard_streams()
    words = sys.argv[1:] if arguments is None else list(arguments)
    parsed = _parser(words).parse_args(words)
    try:
        return int(parsed.main(parsed))
    except UsageError as error:
        print(f"farandole {parsed.name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except FarandoleError as error:
        print(f"farandole {parsed.name}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if not error.filename:  # no file that the user has named
            raise
        print(f"farandole {parsed.name}: {os.fsdecode(error.filename)}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser(words: Sequence[str]) -> Parser:
    """Parser of the requested command, so that no other module is loaded; without a command, parser of all."""
    asked = [COMMANDS[word] for word in words[:1] if word in COMMANDS]
    parser = Parser(prog="farandole", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for module in asked or dict.fromkeys(COMMANDS.values()):
        importlib.import_module(module).add_parser(commands)
    return parser
