"""A process under stress: its stalls and priority, and what it says when it is asked where it is."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType

from farandole.testing.stress.stalls import VARIABLE, Stalls, install

FOLDER = "STRESS_FOLDER"
"""Where processes write what they are asked for."""

STACKS = signal.SIGRTMIN + 7
LANES = signal.SIGRTMIN + 8

IDLE_SHARE = 0.25
"""So many processes run only when nobody else wants to."""


def prepare() -> None:
    """Do what the environment says; the first thing in a process."""
    install(Stalls.from_text(os.environ[VARIABLE]))
    if random.random() < IDLE_SHARE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    folder = os.environ.get(FOLDER)
    if folder:
        file = os.open(Path(folder) / f"{os.getpid()}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        faulthandler.register(STACKS, file, all_threads=True)
        signal.signal(LANES, _tell)


def _tell(_number: int, _frame: FrameType | None) -> None:
    """Write what each lane waits for; in the main thread, so a process that is stuck in native code says nothing."""
    module = sys.modules.get("farandole.runtime.session.init")
    if module is None or not module.is_initialized():
        return
    session = module.current()
    inside = session._active.now() or "no planned or direct collective"
    submitted = ", ".join(name for _, name in getattr(session._lane, "_inflight", {})) or "nothing"
    text = (
        f"rank {session.topology.rank} of generation {session.generation} is inside {inside}; submitted: {submitted}\n"
    )
    (Path(os.environ[FOLDER]) / f"{os.getpid()}.lanes").write_text(text)
