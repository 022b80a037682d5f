"""Jobs of N ranks that run program after program, on the side of the fuzzer.

with Nursery() as nursery:
    job = nursery.job(2)
    job.begin(program, deadline_s=30)
    found = job.finish()                # found.outcomes[rank], found.ending

Processes: this one, with a single thread; the nursery, its child; and the ranks, which the nursery forks. So no rank is
a child of this process: its exit status is not available, the kernel removes it as soon as it exits (the nursery
ignores SIGCHLD), and it is known by its number and one socket. The end of that socket shows its death, before a program
as well as in one. One thread alone uses these objects, so nothing is locked. Several jobs run at once: each gets its
program before this process waits for the outcomes of any.

A number may be reused as soon as a rank has exited. So each rank is held by a pidfd after its first message (its socket
was still open after the pidfd was made, and it has sent nothing else), and no signal is sent to a number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import final

import msgspec

from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.control.addresses import free_port
from farandole.control.keys import new_secret
from workbench.differential.outcome import Outcome
from workbench.differential.program import Program
from workbench.differential.worker import Birth, RunProgram, WorkerHello

START_S = 180.0
END_S = 10.0
AFTER_A_DEATH_S = 20.0
_EVIDENCE = 12000

ENVIRONMENT = {
    "FARANDOLE_STALL_WARNING_S": "10",
    "FARANDOLE_STALL_SHUTDOWN_S": "40",
    "FARANDOLE_START_TIMEOUT_S": "40",
    "OMP_NUM_THREADS": "1",
}


@final
class JobFindings(msgspec.Struct, frozen=True):
    """Outcomes of a job by rank (``None`` if missing), whether it hung or died, and its output."""

    outcomes: list[Outcome | None]
    ending: str = ""
    evidence: str = ""


@final
class RankPool:
    """The ranks of one job, which wait for programs; a job that has hung or died is closed, and of no further use."""

    def __init__(self, connections: Sequence[Connection], processes: Sequence[int], output: Path) -> None:
        self._connections, self._output = list(connections), output
        self._processes = list(processes)
        """A pidfd for each rank that lived when the job was made."""
        self._until_s, self._printed = 0.0, 0

    @property
    def usable(self) -> bool:
        """True if another program may begin: the job is not closed."""
        return bool(self._connections)

    def begin(self, program: Program, deadline_s: float) -> None:
        """Send ``program`` to every rank."""
        self._until_s = time.monotonic() + deadline_s
        self._printed = self._output.stat().st_size  # before any rank gets a program that could print
        order = msgspec.msgpack.encode(RunProgram(program, deadline_s))
        for connection in self._connections:
            with contextlib.suppress(ConnectionError):  # dead: `finish` will find that; the others begin nevertheless
                connection.send_bytes(order)

    def finish(self) -> JobFindings:
        """Wait for the outcomes until the deadline; closes a job that has hung or died."""
        outcomes: dict[int, Outcome] = {}
        waiting = {connection: rank for rank, connection in enumerate(self._connections)}
        died = False
        while waiting and (ready := wait(list(waiting), max(0.0, self._until_s - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    outcomes[rank] = msgspec.msgpack.decode(connection.recv_bytes(), type=Outcome)
                except (EOFError, ConnectionError):
                    died = True
                    # The others may wait for it until a stall is reported. Their errors are worth some time, not all.
                    self._until_s = min(self._until_s, time.monotonic() + AFTER_A_DEATH_S)
        found = [outcomes.get(rank) for rank in range(len(self._connections))]
        if not (died or waiting):
            return JobFindings(found)
        evidence = self._evidence()  # with the stacks that hung ranks print shortly before the deadline
        self.close()
        return JobFindings(found, "died" if died else "hang", evidence)

    def _evidence(self) -> str:
        """The end of the job's output since the program began."""
        with self._output.open("rb") as file:
            file.seek(self._printed)
            return file.read().decode(errors="replace")[-_EVIDENCE:]

    def close(self) -> None:
        """Kill the ranks in any state; later calls do nothing."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                signal.pidfd_send_signal(process, signal.SIGKILL)
            wait([process], END_S)  # not waitpid(): it is no child of this process
            os.close(process)
        for connection in self._connections:
            connection.close()
        self._connections, self._processes = [], []


@final
class Nursery:
    """Maker of jobs, all forked from one process that has PyTorch loaded."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-differential-")
        self._listener = socket.socket(socket.AF_UNIX)
        address = f"{self._folder.name}/socket"
        self._listener.bind(address)
        self._listener.listen(16)
        self._listener.settimeout(START_S)
        self._made = 0
        command = [sys.executable, "-m", "workbench.differential.worker", address]
        environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        self._connection, _ = self._accept()

    def job(self, size: int) -> RankPool:
        """Fork the ranks of a new job, and wait until all of them have connected."""
        self._made += 1
        output = Path(self._folder.name, f"output-{self._made}")
        output.touch()
        told = {OWN.size: str(size), CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret()}
        environments = [{**told, OWN.rank: str(rank)} for rank in range(size)]
        self._connection.send_bytes(msgspec.msgpack.encode(Birth(self._made, environments, str(output))))
        ranks: dict[int, Connection] = {}
        processes: list[int] = []
        while len(ranks) < size:  # they connect in any order
            connection, hello = self._accept()
            assert hello.job == self._made, "a rank of a job that was given up"
            ranks[hello.rank] = connection
            processes += _held(hello.pid, connection)
        return RankPool([ranks[rank] for rank in range(size)], processes, output)

    def _accept(self) -> tuple[Connection, WorkerHello]:
        connected, _ = self._listener.accept()
        connected.setblocking(True)  # a Connection reads the bare descriptor, where a socket's time-out means EAGAIN
        connection = Connection(connected.detach())  # else the socket would close it, too, when it is collected
        return connection, msgspec.msgpack.decode(connection.recv_bytes(), type=WorkerHello)

    def close(self) -> None:
        """End the nursery; its jobs must have been closed."""
        self._connection.close()  # this ends the nursery, and its end kills ranks that are left
        self._process.wait(END_S)
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _held(pid: int, connection: Connection) -> list[int]:
    """A pidfd of the process at the other end of ``connection``; none if it has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return []
    if connection.poll(0):  # only its end can be pending: the number may have been reused before it was opened
        os.close(process)
        return []
    return [process]
