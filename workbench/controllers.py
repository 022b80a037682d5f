"""Look-up of the controller process of an elastic job, for tests that kill it.

>>> os.kill(controller_of(launcher.pid), signal.SIGKILL)
"""

from __future__ import annotations

import contextlib
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
