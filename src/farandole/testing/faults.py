"""Faults at chosen moments of an elastic job.

    # in the training script, before the training function is called
    inject(folder, [Fault(rank=1, step=7, phase="vote"), Fault(rank=0, step=9, phase="commit", action="hang")])

A fault is keyed by rank, step and phase, not by a clock: it happens at the same place on every machine.

A fault runs in the thread that emits the milestone, the training thread, between two of its lines: so the place is
exact. Another thread or a timer would hit another line each time.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, final

import msgspec

from farandole import events

Action: TypeAlias = Literal["kill", "stop", "hang", "loop", "segv", "exit", "raise"]


@final
class Fault(msgspec.Struct, frozen=True):
    """Fault of the worker with this ``rank`` when it reaches ``phase`` (of ``events.Milestone``) of ``step``.

    It happens once in a job, and only in ``generation``, if one is given. ``hang`` waits in C with the interpreter's
    lock held, ``loop`` computes for ever; the other actions are signals, or have plain names.
    """

    rank: int
    step: int
    phase: str
    action: Action = "kill"
    generation: int = -1

    @property
    def mark(self) -> str:
        """Name of the file that marks a fault that has happened."""
        return f"fault-{self.rank}-{self.step}-{self.phase}-{self.action}-{self.generation}"


def inject(folder: Path | str, faults: Sequence[Fault]) -> Callable[[], None]:
    """Inject these faults into this worker when they are due; the returned function ends the injection."""

    def watch(event: events.Event) -> None:
        if not isinstance(event, events.Milestone):
            return
        for fault in faults:
            is_due = (fault.rank, fault.step, fault.phase) == (event.rank, event.step, event.phase)
            # The mark is made first: most actions leave no time for it afterwards, and the worker that replaces a
            # killed worker reaches the same rank, step and phase again.
            if is_due and fault.generation in (-1, event.generation) and _is_first(Path(folder) / fault.mark):
                inject_now(fault.action)

    return events.subscribe(watch)


@final
class InjectedError(BaseException):
    """Raised by the action ``raise``; no ``Exception``, because exceptions of subscribers are only logged."""


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)  # O_EXCL: of several processes at once, one is the first
    except FileExistsError:
        return False
    return True


def inject_now(action: Action) -> None:
    """Inject a fault into this process, at once."""
    if action in ("kill", "stop", "segv"):
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV}[action]
        os.kill(os.getpid(), number)
    elif action == "exit":
        os._exit(0)
    elif action == "raise":
        raise InjectedError("a fault, as the test asked for")
    elif action == "hang":
        _hang()
    while action == "loop":
        pass


def _hang() -> None:
    """Wait in C for a lock that this thread holds: unlike a sleep, no signal ends it, so Python never runs again."""
    # PyDLL and not CDLL, which would release the interpreter's lock: other threads would run, and answer.
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
