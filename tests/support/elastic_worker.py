"""A worker of an elastic job that trains until a file named ``end`` is there: ``python elastic_worker.py [FAULT]...``

A fault is RANK:STEP:ACTION, as of ``farandole.testing.faults``, and happens in ``commit``; or one of the actions below.
Whenever it begins to train it prints who it is: ``worker 3 trains: generation 2, rank 1 of 2, step 30, process 77``.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from farandole import events
from farandole.collective import ReduceOp
from farandole.control.channel import Dealer
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.runtime.session.init import current, init, is_initialized, shutdown
from farandole.testing.faults import Fault, inject
from workbench.jobs import NumpyCalls

FOLDER = Path.cwd()
FIELDS = ("rank", "step", "phase", "action")
STEP_S = 0.01
LAST: list[Callable[[], object]] = []
"""What the process does at last."""
SLOW_S = 5.0
"""What a step takes that is slow, and in which its rank does not hang."""


def main() -> None:
    """Train."""
    asked = [words.split(":") for words in sys.argv[1:]]
    own = {(int(rank), int(step)): action for rank, step, action in asked if action in ACTIONS}
    others = [(rank, step, "commit", action) for rank, step, action in asked if action not in ACTIONS]
    inject(FOLDER, [msgspec.convert(dict(zip(FIELDS, words, strict=True)), Fault, strict=False) for words in others])
    atexit.register(lambda: [do() for do in LAST])  # before init, so that it comes after what that registers
    init()
    print(f"worker {os.environ['FARANDOLE_WORKER_ID']} is up: process {os.getpid()}", flush=True)
    train(Steps(step=0), own)
    print(f"worker {os.environ['FARANDOLE_WORKER_ID']} has finished", flush=True)
    shutdown()


class Steps(ObjectState):
    """How many steps there have been."""

    step: int


@run
def train(state: Steps, own: dict[tuple[int, int], str]) -> None:
    """Count steps."""
    who, do = current().topology, NumpyCalls()
    print(
        f"worker {os.environ['FARANDOLE_WORKER_ID']} trains: generation {who.generation}, rank {who.rank} of "
        f"{who.size}, step {state.step}, process {os.getpid()}",
        flush=True,
    )
    ends = np.zeros(16, np.int64)  # too much to travel with the agreement
    while not ends[0]:
        time.sleep(STEP_S)
        ends[:] = (FOLDER / "end").exists()
        do.allreduce("ends", ends, ReduceOp.MAX)
        state.step += 1
        if action := own.pop((who.rank, state.step), None):
            ACTIONS[action]()
        state.commit()


def finish() -> None:
    """End early, and well."""
    shutdown()
    sys.exit(0)


def leave_child() -> None:
    """Die, and leave a process running in a session of its own."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.kill(os.getpid(), 9)


def fail_slowly() -> None:
    """Raise; when all others are told, the process goes on until it is to end."""
    LAST.append(until_end)
    raise RuntimeError("as the test asked for")


def stop_inside() -> None:
    """Stop when the next collective is agreed on, and the others are in their engine."""

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Phase) and event.phase == "cycle":
            os.kill(os.getpid(), signal.SIGSTOP)

    events.subscribe(stop)


def expect_notice() -> None:
    """Be told to end when the next generation is due, but this one is not left yet."""

    def tell(event: events.Event) -> None:
        if isinstance(event, events.Milestone) and event.phase == "reform":
            os.kill(os.getpid(), signal.SIGTERM)

    events.subscribe(tell)


def expect_notice_slowly() -> None:
    """The same, letting the others come to the next generation, and taking long to end."""
    LAST.extend([(FOLDER / "go").touch, until_end])
    expect_notice()


def withdraw_slowly() -> None:
    """Be told to end when this generation has been left, let the others come to the next one, and take long to end."""

    def tell(event: events.Event) -> None:
        if isinstance(event, events.Milestone) and event.phase == "reform":
            threading.Thread(target=told_outside, daemon=True).start()

    LAST.extend([(FOLDER / "go").touch, until_end])
    events.subscribe(tell)


def withdraw_while_connecting() -> None:
    """The same, while the controller has not yet let this worker in."""
    flush = Dealer.flush
    told: list[bool] = []

    def told_first(self: Dealer, timeout_s: float) -> None:
        if not told:
            told.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        flush(self, timeout_s)

    LAST.extend([(FOLDER / "go").touch, until_end])
    Dealer.flush = told_first  # type: ignore[method-assign]


def told_outside() -> None:
    """Be told to end in no generation."""
    while is_initialized():
        time.sleep(STEP_S)
    os.kill(os.getpid(), signal.SIGTERM)


def leave_slowly() -> None:
    """Be told to end, and do so when the file is there: as long as others may take for a last checkpoint."""
    LAST.append(until_end)
    os.kill(os.getpid(), signal.SIGTERM)


def until_end() -> None:
    """Wait for the file."""
    until("end")


def until_go() -> None:
    """Take long for a step."""
    until("go")


def until(name: str) -> None:
    """Wait for a file."""
    while not (FOLDER / name).exists():
        time.sleep(STEP_S)


ACTIONS = {
    "stop inside": stop_inside,
    "expect notice": expect_notice,
    "fail slowly": fail_slowly,
    "leave slowly": leave_slowly,
    "withdraw slowly": withdraw_slowly,
    "withdraw while connecting": withdraw_while_connecting,
    "expect notice slowly": expect_notice_slowly,
    "pause": signal.pause,
    "finish": finish,
    "slow": lambda: time.sleep(SLOW_S),
    "orphan": leave_child,
    "wait": until_go,
}

main()
