"""Launcher whose controller fails when a signal orders that, for tests of elastic jobs.

    python -m workbench.controllers run -np 2 --min-np 1 python train.py
    fail_controller(launcher_below(pid))            # the loop of its controller raises PlantedError

The error is raised between any two instructions of the loop: an error of our own code may occur anywhere.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import final

from farandole.control import process

FAIL = signal.SIGRTMIN
AGAIN_S = 0.02
MODULE = b"workbench.controllers"

FAILED = "the controller has failed: PlantedError: by order: another one takes over"
"""Text that the launcher prints for each failure."""


@final
class PlantedError(Exception):
    """Error in the loop of a controller."""


def launcher_below(pid: int) -> int:
    """The process that runs this module: ``pid`` or a descendant of it; 0 while there is none."""
    for each in (pid, *process.descendants(pid)):
        try:
            words = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if MODULE in words:
            return each
    return 0


def fail_controller(launcher: int) -> None:
    """Let the controller of this launcher fail; if none runs its loop now, the next one fails."""
    os.kill(launcher, FAIL)


def _fail(_number: int, frame: FrameType | None) -> None:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "serve" and code.co_filename.endswith("event_loop.py"):
            raise PlantedError("by order")
        frame = frame.f_back
    later = threading.Timer(AGAIN_S, os.kill, (os.getpid(), FAIL))  # between two controllers
    later.daemon = True
    later.start()


def main() -> None:
    """Run the command ``farandole``."""
    signal.signal(FAIL, _fail)
    from farandole.cli import main as farandole

    sys.argv[0] = "farandole"
    sys.exit(farandole())


if __name__ == "__main__":
    main()
