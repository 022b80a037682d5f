"""Caller that waits for two workers in slots until it is killed: ``python -m tests.support.clusters.caller FOLDER``.

The folder gets a file for every process that it has started, named by its number.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from farandole.launch.clusters.slot_function import FunctionCall, run_on
from tests.support.clusters.process_lender import ProcessLender


def waits(folder: Path) -> None:
    """Wait, once both ranks and what started them are noted."""
    import farandole.numpy as hvd

    hvd.init()
    agent = os.getppid()
    task = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (os.getpid(), agent, task):
        (folder / str(pid)).touch()
    hvd.barrier()
    if hvd.rank() == 0:
        print("all run", flush=True)
    signal.pause()


if __name__ == "__main__":
    run_on(ProcessLender(["a", "b"]), FunctionCall(waits, (Path(sys.argv[1]),)), 2, knobs={})
