"""A fleet: N processes of one contender that sleep until they are told what to measure.

    with Fleet("gloo", 2) as gloo, Fleet("mpich", 2) as mpich:
        gloo.call("reduce", 4096, 100)      # what each rank answered, by rank
    Fleet("hybrid", 4, cluster, ("node1", "node1", "node2", "node2"))       # on hosts made of namespaces

All contenders stand ready at once, and the rounds go from one to the next, so that whatever else the machine does meets
them all alike.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, final

from workbench.cluster import Cluster

ADDRESS, RANK, SIZE, HOSTS = "BENCH_ADDRESS", "BENCH_RANK", "BENCH_SIZE", "BENCH_HOSTS"
Command: TypeAlias = tuple[list[str], dict[str, str]]
"""Arguments and additional environment of a process."""

START_S = 60.0
ANSWER_S = 120.0
"""How long a rank may take for one answer."""


@final
class Fleet:
    """``size`` processes of ``contender``; ``call`` asks them all and returns their answers in rank order.

    ``commands``: what to start instead of ``benchmarks.rank``; what it prints is not shown. ``answer_s``: how long a
    rank may take for one answer.
    """

    def __init__(
        self,
        contender: str,
        size: int,
        cluster: Cluster | None = None,
        hosts: Sequence[str] = (),
        commands: Sequence[Command] | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.contender, self.size, self._answer_s = contender, size, answer_s
        self._processes: list[subprocess.Popen[Any]] = []
        self._ranks: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        address = str(Path(self._folder.name) / "socket")
        output = None if commands is None else subprocess.DEVNULL
        told = {"OMP_NUM_THREADS": "1", ADDRESS: address, SIZE: str(size)}
        told[HOSTS] = ",".join(hosts or ["localhost"] * size)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(size)
                listener.settimeout(START_S)
                for place, (command, extra) in enumerate(commands or _commands(contender, size)):
                    env = {**told, **extra}
                    self._processes.append(
                        cluster.popen(hosts[place], command, env=env)
                        if cluster
                        else subprocess.Popen(
                            command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                        )
                    )
                connections = dict(_accept(listener) for _ in range(size))
            self._ranks = [connections[rank] for rank in range(size)]
            self.checked = self.call("check")
        except BaseException:
            self.close()
            raise

    def call(self, verb: str, *arguments: Any) -> list[Any]:
        """Every rank's answer to ``verb``; raises with the traceback if one of them raised."""
        for rank in self._ranks:
            rank.send((verb, arguments))
        while True:
            said = [self._receive(rank) for rank in self._ranks]
            kinds = {kind for kind, _ in said}
            if kinds == {"answer"}:
                return [value for _, value in said]
            if kinds != {"exchange"}:
                raise RuntimeError(f"{self.contender}: " + "\n".join(str(v) for k, v in said if k == "error"))
            for rank in self._ranks:
                rank.send([value for _, value in said])

    def _receive(self, rank: Connection) -> tuple[str, Any]:
        if not rank.poll(self._answer_s):
            raise TimeoutError(f"{self.contender}: no answer for {self._answer_s:g} s")
        kind, value = rank.recv()
        return kind, value

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            with contextlib.suppress(OSError):  # it has ended already
                rank.send(("stop", ()))
            rank.close()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _accept(listener: socket.socket) -> tuple[int, Connection]:
    """The next rank that connects, and its line. The folder of the socket is closed to other users."""
    connected, _ = listener.accept()
    connected.setblocking(True)
    connection = Connection(connected.detach())
    return connection.recv(), connection


def _commands(contender: str, size: int) -> list[Command]:
    """The processes to start: one per rank, or one MPI launcher for all."""
    rank = [sys.executable, "-m", "benchmarks.rank", contender]
    bin_, lib = Path(sys.prefix) / "bin", Path(sys.prefix) / "lib"
    if contender == "mpich":
        return [([str(bin_ / "mpiexec.hydra"), "-n", str(size), *rank], {"MPI4PY_LIBMPI": str(lib / "libmpi.so.12")})]
    if contender == "openmpi":
        crowded = size > (os.cpu_count() or 1)
        how = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if crowded else []
        launcher = [str(bin_ / "prterun"), "--personality", "ompi", "--allow-run-as-root", *how, "-n", str(size)]
        return [([*launcher, *rank], {"MPI4PY_LIBMPI": str(lib / "libmpi.so.40")})]
    return [(rank, {RANK: str(place)}) for place in range(size)]


def connect(rank: int) -> Connection:
    """The rank's end of the line."""
    connection = Client(os.environ[ADDRESS], "AF_UNIX")
    connection.send(rank)
    return connection
