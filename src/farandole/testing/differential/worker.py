"""Ranks that run program after program, forked from one process that has PyTorch loaded.

    python -m farandole.testing.differential.worker SOCKET

The nursery (this process) is told to make ranks; each connects to the same socket and says which it is. To fork what is
loaded costs milliseconds, to load PyTorch seconds: a job that hangs is ended, and the next one is there at once. The
nursery has no threads: it makes no session and runs no program.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any

import msgspec
import torch
import torch.utils.checkpoint
import torch.utils.data

import farandole.torch as hvd
from farandole.errors import FarandoleError
from farandole.testing.differential.outcome import Outcome, failure_of, run
from farandole.testing.differential.program import Program

_PR_SET_PDEATHSIG = 1

STACKS_BEFORE_S = 2.0
"""How long before the deadline a rank that is not done writes the stacks of its threads to standard error."""


class Birth(msgspec.Struct, frozen=True):
    """What the nursery is sent: make the ranks of a job, one per environment, which print to ``output``."""

    job: int
    environments: list[dict[str, str]]
    output: str


class WorkerHello(msgspec.Struct, frozen=True):
    """What says who has connected: a rank of a job, or the nursery, which has no rank."""

    pid: int
    job: int = -1
    rank: int = -1


class RunProgram(msgspec.Struct, frozen=True):
    """What a rank is sent: a program, and how long it may take."""

    program: Program
    deadline_s: float


def main(address: str) -> None:
    """Be the nursery until the socket closes."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    warnings.simplefilter("ignore")
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer of a process loads much
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks that end leave nothing behind
    with Client(address, "AF_UNIX") as connection, contextlib.suppress(EOFError, ConnectionError):
        connection.send_bytes(msgspec.msgpack.encode(WorkerHello(os.getpid())))
        while True:
            birth = msgspec.msgpack.decode(connection.recv_bytes(), type=Birth)
            for rank, environment in enumerate(birth.environments):
                if os.fork() == 0:
                    connection.close()
                    be_rank(address, birth, rank, environment)


def be_rank(address: str, birth: Birth, rank: int, environment: dict[str, str]) -> None:
    """Run what comes, answer with outcomes, until the socket closes; then end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # hung ranks end with the nursery
    os.environ.update(environment)
    output = os.open(birth.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    connection = Client(address, "AF_UNIX")
    connection.send_bytes(msgspec.msgpack.encode(WorkerHello(os.getpid(), birth.job, rank)))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            order = msgspec.msgpack.decode(connection.recv_bytes(), type=RunProgram)
            faulthandler.dump_traceback_later(max(1.0, order.deadline_s - STACKS_BEFORE_S))
            connection.send_bytes(msgspec.msgpack.encode(perform(order.program)))
            faulthandler.cancel_dump_traceback_later()
    os._exit(0)


def perform(program: Program) -> Outcome:
    """The outcome on this rank, in a generation of its own."""
    settings: dict[str, Any] = dict(program.settings)
    try:
        function: Callable[[Any, Any], None] = program.compiled()
        hvd.init(**settings)
    except Exception as error:
        return Outcome(failure=failure_of(error))
    outcome = run(function, hvd)
    try:
        hvd.shutdown()
    except FarandoleError as error:
        return Outcome(outcome.values, outcome.failure or failure_of(error))
    finally:
        function.__globals__.clear()
    return outcome


if __name__ == "__main__":
    main(sys.argv[1])
