"""``python -m horovod.runner.launch``, and the entry point of the command ``horovodrun``."""

from __future__ import annotations

import sys

from farandole.cli import main


def run_commandline() -> None:
    """Run the job of the command line, and exit with its status."""
    sys.exit(main(["horovodrun", *sys.argv[1:]]))


if __name__ == "__main__":
    run_commandline()
