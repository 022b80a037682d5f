"""Jobs of N ranks that run program after program, from the side that gives them.

with Nursery() as nursery:
    job = nursery.job(2)
    job.begin(program, deadline_s=30)
    found = job.finish()                # found.outcomes[rank], found.ending
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
from farandole.control.keys import new_secret
from farandole.testing.differential.outcome import Outcome
from farandole.testing.differential.program import Program
from farandole.testing.differential.worker import Birth, RunProgram, WorkerHello
from farandole.testing.jobs import free_port

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
    """What a job did: outcomes by rank (``None``: there is none), whether it hung or died, and what it had printed."""

    outcomes: list[Outcome | None]
    ending: str = ""
    evidence: str = ""


@final
class RankPool:
    """Ranks that wait for programs; a job that has hung or died is of no further use."""

    def __init__(self, connections: Sequence[Connection], pids: Sequence[int], output: Path) -> None:
        self._connections, self._pids, self._output = list(connections), list(pids), output
        self._until_s, self._printed = 0.0, 0

    @property
    def usable(self) -> bool:
        """Whether another program may begin."""
        return bool(self._connections)

    def begin(self, program: Program, deadline_s: float) -> None:
        """Let every rank begin with ``program``."""
        self._until_s = time.monotonic() + deadline_s
        self._printed = self._output.stat().st_size
        order = msgspec.msgpack.encode(RunProgram(program, deadline_s))
        for connection in self._connections:
            with contextlib.suppress(ConnectionError):
                connection.send_bytes(order)

    def finish(self) -> JobFindings:
        """Wait for the outcomes until the deadline."""
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
                    self._until_s = min(self._until_s, time.monotonic() + AFTER_A_DEATH_S)
        found = [outcomes.get(rank) for rank in range(len(self._connections))]
        if not (died or waiting):
            return JobFindings(found)
        evidence = self._evidence()
        self.close()
        return JobFindings(found, "died" if died else "hang", evidence)

    def _evidence(self) -> str:
        """What the job has printed since the program began."""
        with self._output.open("rb") as file:
            file.seek(self._printed)
            return file.read().decode(errors="replace")[-_EVIDENCE:]

    def close(self) -> None:
        """End the ranks, whatever they do."""
        for connection, pid in zip(self._connections, self._pids, strict=True):
            with contextlib.suppress(ProcessLookupError):
                ended = os.pidfd_open(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                    wait([ended], END_S)
                finally:
                    os.close(ended)
            connection.close()
        self._connections, self._pids = [], []


@final
class Nursery:
    """Makes jobs, all from one process that has PyTorch loaded."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farandole-differential-")
        self._listener = socket.socket(socket.AF_UNIX)
        address = f"{self._folder.name}/socket"
        self._listener.bind(address)
        self._listener.listen(16)
        self._listener.settimeout(START_S)
        self._made = 0
        command = [sys.executable, "-m", "farandole.testing.differential.worker", address]
        environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        self._connection, _ = self._accept()

    def job(self, size: int) -> RankPool:
        """A new job."""
        self._made += 1
        output = Path(self._folder.name, f"output-{self._made}")
        output.touch()
        told = {OWN.size: str(size), CONTROLLER: f"tcp://127.0.0.1:{free_port()}", KEY: new_secret()}
        environments = [{**told, OWN.rank: str(rank)} for rank in range(size)]
        self._connection.send_bytes(msgspec.msgpack.encode(Birth(self._made, environments, str(output))))
        ranks: dict[int, tuple[Connection, int]] = {}
        while len(ranks) < size:
            connection, hello = self._accept()
            assert hello.job == self._made, "a rank of a job that was given up"
            ranks[hello.rank] = connection, hello.pid
        return RankPool([ranks[rank][0] for rank in range(size)], [ranks[rank][1] for rank in range(size)], output)

    def _accept(self) -> tuple[Connection, WorkerHello]:
        connected, _ = self._listener.accept()
        connected.setblocking(True)
        connection = Connection(connected.detach())
        return connection, msgspec.msgpack.decode(connection.recv_bytes(), type=WorkerHello)

    def close(self) -> None:
        """End the nursery; its jobs must have been closed."""
        self._connection.close()
        self._process.wait(END_S)
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
