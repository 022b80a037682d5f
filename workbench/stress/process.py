"""A process under stress: its stalls and priority, and its reports of stacks and lanes.

Two signals request reports, because neither shows everything. ``faulthandler`` answers ``STACKS`` in the signal handler
itself, even in a process that is stuck in native code with the GIL held; but it knows only stacks. ``LANES`` is
answered in Python, for which the main thread must return to the interpreter; but it knows the session. Both are
real-time signals far below the one that a session uses for stacks, which is the highest free one.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType

from workbench.stress.stalls import VARIABLE, Stalls, install

FOLDER = "STRESS_FOLDER"
"""Variable that names the folder of the reports."""

STACKS = signal.SIGRTMIN + 7
LANES = signal.SIGRTMIN + 8

IDLE_SHARE = 0.25
"""Share of the processes that run only when no other process wants to."""


def prepare() -> None:
    """Install stalls, priority and signal handlers from the environment; the first call in a process."""
    install(Stalls.from_text(os.environ[VARIABLE]))
    if random.random() < IDLE_SHARE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    folder = os.environ.get(FOLDER)
    if folder:
        file = os.open(Path(folder) / f"{os.getpid()}.stacks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # All threads, because any may hang; a thread that runs on meanwhile can cause a SIGSEGV here (see
        # ``runtime.session.stacks``), which is no loss: the process is killed next, and what was written stays.
        # A bare descriptor, opened now and never closed: the handler can open nothing, and a file object would be
        # closed when it is collected.
        faulthandler.register(STACKS, file, all_threads=True)
        signal.signal(LANES, _tell)


def _tell(_number: int, _frame: FrameType | None) -> None:
    """Write what each lane waits for; runs in the main thread, so a process stuck in native code writes nothing."""
    module = sys.modules.get("farandole.runtime.session.init")
    if module is None or not module.is_initialized():
        return
    # No lock is taken: this interrupts the main thread anywhere, and that may hold any of them.
    session = module.current()
    inside = session._active.now() or "no planned or direct collective"
    submissions = getattr(session._lane, "_submissions", None)  # the lane of a job of one has none
    submitted = ", ".join(name for _, name in submissions.inflight) if submissions is not None else ""
    submitted = submitted or "nothing"
    text = (
        f"rank {session.topology.rank} of generation {session.generation} is inside {inside}; submitted: {submitted}\n"
    )
    (Path(os.environ[FOLDER]) / f"{os.getpid()}.lanes").write_text(text)
