"""Ranks that run program after program, forked from one process that has PyTorch loaded.

    python -m workbench.differential.worker SOCKET

The nursery (this process) makes ranks on request; each connects to the same socket and identifies itself. A fork of the
loaded process costs milliseconds, loading PyTorch seconds: a job that hangs is killed, and the next one is ready at
once. The nursery has no threads: it makes no session and runs no program. So its forks are safe (no lock is held by a
thread that the child does not have), and the parent-death signal of the ranks works. A rank begins with one thread; a
program adds the threads of its session, and the watchdog that writes stacks.
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
from workbench.differential.outcome import Outcome, failure_of, run
from workbench.differential.program import Program

_PR_SET_PDEATHSIG = 1

STACKS_BEFORE_S = 2.0
"""Time before the deadline at which an unfinished rank writes the stacks of its threads to standard error."""


class Birth(msgspec.Struct, frozen=True):
    """Order to the nursery: make the ranks of a job, one per environment, which print to ``output``."""

    job: int
    environments: list[dict[str, str]]
    output: str


class WorkerHello(msgspec.Struct, frozen=True):
    """First message on a connection, from a rank of a job, or from the nursery, which has no rank."""

    pid: int
    job: int = -1
    rank: int = -1


class RunProgram(msgspec.Struct, frozen=True):
    """Order to a rank: a program, and how long it may take."""

    program: Program
    deadline_s: float


def main(address: str) -> None:
    """Be the nursery: fork ranks as ordered, until the socket closes."""
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    warnings.simplefilter("ignore")
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer of a process loads much
    gc.collect()
    gc.freeze()  # the ranks' collectors skip loaded objects, which stay shared with the nursery
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for ranks: the kernel reaps them
    with Client(address, "AF_UNIX") as connection, contextlib.suppress(EOFError, ConnectionError):
        connection.send_bytes(msgspec.msgpack.encode(WorkerHello(os.getpid())))
        while True:
            birth = msgspec.msgpack.decode(connection.recv_bytes(), type=Birth)
            for rank, environment in enumerate(birth.environments):
                if os.fork() == 0:
                    connection.close()  # a copy of it would hide the nursery's exit from the fuzzer
                    be_rank(address, birth, rank, environment)


def be_rank(address: str, birth: Birth, rank: int, environment: dict[str, str]) -> None:
    """Run the requested programs and answer with their outcomes, until the socket closes; then exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # programs wait for children, whose status the kernel must keep
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # hung ranks end with the nursery's (one) thread
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
            # A watchdog in C: it needs no interpreter lock, and writes even if a thread hangs with it held.
            faulthandler.dump_traceback_later(max(1.0, order.deadline_s - STACKS_BEFORE_S))
            connection.send_bytes(msgspec.msgpack.encode(perform(order.program)))
            faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # not back to main() of the nursery, nor through exit hooks of programs


def perform(program: Program) -> Outcome:
    """Run ``program`` in a generation of its own; its outcome on this rank."""
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
        function.__globals__.clear()  # it is in its own globals: else only the cycle collector would free them
    return outcome


if __name__ == "__main__":
    main(sys.argv[1])
