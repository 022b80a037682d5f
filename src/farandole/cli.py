"""The command line: ``farandole run``, ``check``, ``bench``, ``horovodrun``.

main(["run", "-np", "4", "python", "train.py"])      # returns the exit status
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

from farandole import __version__
from farandole.control.process import open_standard_streams
from farandole.errors import FarandoleError, UsageError
from farandole.launch.options import USAGE_ERROR, Parser

COMMANDS = (
    "farandole.launch.command",
    "farandole.launch.check",
    "farandole.launch.bench",
    "farandole.launch.horovodrun",
)
"""Modules with ``add_parser(subparsers)``, which sets ``main``: from the parsed arguments to the exit status."""

DESCRIPTION = """\
Data-parallel deep learning, in the words of Horovod.

  farandole run -np 4 python train.py     train on four workers
  farandole check                         what is usable here, and why not
  farandole bench                         how fast the engines are here
  farandole COMMAND --help                more about a command
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what cannot be right is answered with what to type, and exit status 2."""
    open_standard_streams()
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.main(parsed))
    except UsageError as error:
        print(f"farandole {parsed.name}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except FarandoleError as error:
        print(f"farandole {parsed.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> Parser:
    parser = Parser(prog="farandole", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"farandole {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for module in COMMANDS:
        importlib.import_module(module).add_parser(commands)
    return parser
