"""Look-up of the controller process of an elastic job, for tests that kill it.

>>> kill_controller_of(launcher.pid, controller_of(launcher.pid))
True
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from farandole.control import process
from farandole.launch.job.elastic_controller import PROCESS_NAME


def controller_of(launcher: int) -> int:
    """Process number of the controller below process ``launcher``; 0 while there is none."""
    for pid in process.descendants(launcher):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text() == f"{PROCESS_NAME}\n":
                return pid
    return 0


def kill_controller_of(launcher: int, pid: int) -> bool:
    """Kill the controller ``pid`` below process ``launcher``; False if it is no controller any more."""
    try:
        ending = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Checked after the pidfd was opened: from here on it is the controller, and no process that reuses the number.
        if controller_of(launcher) != pid:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(ending, signal.SIGKILL)
        return True
    finally:
        os.close(ending)
