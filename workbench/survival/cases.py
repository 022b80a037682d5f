"""Rows and phases of the table of faults: their building blocks, and the faults on one host."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from workbench.ports import listening
from workbench.survival.fault_injection import NEWCOMER, ScheduledFault, injected
from workbench.survival.job import TraineeJob

Do: TypeAlias = Callable[[TraineeJob, int], object]


@final
class FaultCase(NamedTuple):
    """One row: ``faults`` in the workers, and what is ``done`` from outside after the first of them have happened.

    ``harmless``: no worker may be lost, and no generation end. ``after`` runs when the others train again. ``lost``:
    the hosts that were lost with everything on them. ``status``: exit status of the job, if this row is the last.
    ``quick``: played with every change of the code.
    """

    fault: str
    phase: str
    faults: Sequence[ScheduledFault] = ()
    done: Do | None = None
    after: Do | None = None
    harmless: bool = False
    planned: bool = False
    lost: str = ""
    status: int = 0
    quick: bool = False


def kill(phase: str, *ranks: int, quick: bool = False, name: str = "") -> FaultCase:
    """Ranks are killed in a phase."""
    whose = name or f"SIGKILL of rank {', '.join(map(str, ranks))}"
    return FaultCase(whose, phase, [ScheduledFault(phase, rank) for rank in ranks], quick=quick)


def again(phase: str, rank: int, quick: bool = False) -> FaultCase:
    """Another rank is killed while the others re-form without rank 3."""
    faults = [ScheduledFault("reduce", 3), ScheduledFault(phase, rank, later=True)]
    return FaultCase(f"SIGKILL of rank 3, then of rank {rank}", f"reduce, then {phase}", faults, quick=quick)


def controller(phase: str, quick: bool = False) -> FaultCase:
    """The controller fails when rank 0 reaches a phase, in which rank 0 waits for that."""
    return FaultCase("an error in the controller", phase, [ScheduledFault(phase, 0, "call")], _controller, quick=quick)


def controller_again(phase: str, quick: bool = False) -> FaultCase:
    """The controller fails while the others re-form without rank 3, and so does its successor at once."""
    faults = [ScheduledFault("reduce", 3), ScheduledFault(phase, 0, "call", later=True)]
    return FaultCase(
        "SIGKILL of rank 3, then errors in two controllers", f"reduce, then {phase}", faults, _controllers, quick=quick
    )


def _controller(job: TraineeJob, _number: int) -> None:
    job.fail_controller()


def _controllers(job: TraineeJob, number: int) -> None:
    job.until(lambda: len(injected(job.folder, number)) == 2, "its phase")
    job.fail_controller()
    job.fail_controller()  # waits for another one


def other(action: str, phase: str, rank: int, name: str, quick: bool = False) -> FaultCase:
    """A rank fails in another way than by SIGKILL."""
    return FaultCase(f"{name} of rank {rank}", phase, [ScheduledFault(phase, rank, action)], quick=quick)  # type: ignore[arg-type]


def newcomer(name: str, phase: str, action: str, quick: bool = False) -> FaultCase:
    """The worker that replaces a killed one fails."""
    faults = [ScheduledFault("reduce", 3), ScheduledFault(phase, NEWCOMER, action, later=True)]  # type: ignore[arg-type]
    return FaultCase(name, phase, faults, quick=quick)


def notice(job: TraineeJob, _number: int) -> None:
    """A worker gets SIGTERM."""
    members = job.generation()
    os.kill(members[1].pid, signal.SIGTERM)
    job.until_whole(after=members[0].generation)


def _wrong_key(job: TraineeJob, _number: int) -> None:
    """A process with all of a worker's variables except its key connects as one."""
    pid = job.generation()[0].pid
    words = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)
    words = {name: "0" * len(text) if "KEY" in name else text for name, text in words.items()}
    words["FARANDOLE_START_TIMEOUT_S"] = "3"
    words["FARANDOLE_WORKER_ID"] = "99"
    refused = subprocess.run(
        [sys.executable, "-c", "from farandole.runtime.session.init import init; init()"],
        env=words, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode != 0, "it was let in"


def _noise(job: TraineeJob, _number: int) -> None:
    """Random bytes, many of them, for every port on which the job listens."""
    ports = listening({job.launcher(), *(each.pid for each in job.generation())})
    assert ports, "the job listens nowhere"
    for port, size in itertools.product(ports, (1, 100, 100_000)):
        with socket.create_connection(("127.0.0.1", port), 5) as peer, contextlib.suppress(OSError):
            peer.sendall(os.urandom(size))  # or it has closed the connection, which is right, too


ONE_HOST = (
    kill("reduce", 3, quick=True),
    kill("idle", 3),
    kill("loading", 1),
    controller("idle"),
    controller("reduce", quick=True),
    controller("voted"),
    kill("forward", 0),
    kill("backward", 2),
    kill("reduce", 0),
    kill("vote", 1),
    kill("voted", 0, quick=True, name="SIGKILL of rank 0: a torn vote"),
    kill("voted", 0, 1, 2, name="SIGKILL of rank 0, 1, 2: a torn vote"),
    kill("applied", 2),
    kill("commit", 3),
    kill("epoch end", 1),
    kill("backward", 1, 2),
    kill("reduce", 0, 1, 2, name="SIGKILL of all but rank 3 (below --min-np)", quick=True),
    again("reform", 1),
    again("connect", 0),
    again("agree", 0),
    again("transfer", 0),
    again("synced", 1),
    newcomer("a newcomer is killed while it receives the state", "receive", "kill", quick=True),
    newcomer("a newcomer's script raises before it is ready", "building", "raise"),
    other("raise", "forward", 1, "a Python exception", quick=True),
    other("segv", "backward", 0, "SIGSEGV"),
    other("loader", "loading", 2, "a killed data-loading process"),
    other("stop", "backward", 1, "SIGSTOP"),
    other("hang", "forward", 0, "a hang with the GIL held", quick=True),
    controller_again("connect"),  # not beside the rows above: five controllers that fail within a minute end a job
    controller_again("agree", quick=True),
    FaultCase("a process with a wrong key", "any", done=_wrong_key, harmless=True),
    FaultCase("random bytes at every port", "any", done=_noise, harmless=True, quick=True),
    FaultCase("SIGTERM of rank 1", "any", done=notice, planned=True, quick=True),
)
"""Faults on one host with four slots."""

LAST = (FaultCase("exit 0 of rank 1 early", "backward", [ScheduledFault("backward", 1, "exit")], quick=True),)
"""After this fault no worker is started any more."""
