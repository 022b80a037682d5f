"""Two jobs of one user, started in the same second on one host, seen from outside by a variable that each has."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import pytest

from tests.support.patience import PATIENCE_S

DEADLINE_S = 2.5 * PATIENCE_S
VARIABLE = "TWIN_OF_A_TEST"
LISTENS = "0A"
"""The state of a listening socket in ``/proc/net/tcp``."""

SCRIPT = """
import os, sys
import numpy as np
from farandole.collective import ReduceOp
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

init()
job, topology, do, left, end = float(sys.argv[1]), current().topology, NumpyCalls(), 30, np.zeros(1)
while left:
    for count in (8, 100_000):
        values = np.full(count, job)
        do.allreduce(f"same {count}", values)
        assert (values == topology.size * job).all(), values
    open(f"up-{sys.argv[1]}-{topology.rank}", "w").close()
    if not end[0]:
        end[0] = os.path.exists("go")
        do.allreduce("end", end, ReduceOp.MAX)
    left -= bool(end[0])
shutdown()
print("fine", topology.size, flush=True)
"""

Start = Callable[..., Any]
"""Starts a command as ``subprocess.Popen`` does, with ``env``, ``cwd``, ``stdout`` and ``stderr``."""


@final
class Twin:
    """A job of ``SCRIPT`` with two ranks; every process of it carries a variable that no other job has."""

    def __init__(
        self, number: int, folder: Path, command: Sequence[str], start: Start, environment: Mapping[str, str]
    ) -> None:
        self.number, self._folder = number, folder
        (folder / "script.py").write_text(SCRIPT)
        self._marker = f"{VARIABLE}={uuid.uuid4().hex}"
        name, _, value = self._marker.partition("=")
        self._out = folder / f"out-{number}"
        with self._out.open("wb") as out:
            self.process = start(
                [*command, "script.py", str(number)],
                env={**environment, name: value},
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """Output until now."""
        return self._out.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for ``condition``; fail with the output at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what} of job {self.number}:\n{self.said}")
            time.sleep(0.01)  # nothing announces what /proc and a file show

    def until_up(self) -> None:
        """Wait until both ranks have reduced."""
        self.until(lambda: len(list(self._folder.glob(f"up-{self.number}-*"))) == 2, "two ranks")

    def end(self) -> int:
        """Wait for the end; returns the exit status. Nothing of the job may be left then."""
        self.until(lambda: self.process.poll() is not None, "the end")
        self.until(lambda: not self.processes(), "its last processes to go")
        return int(self.process.returncode)

    def kill(self) -> None:
        """Kill every process of it."""
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()

    def processes(self) -> list[int]:
        """Living processes of this job, in whatever namespace."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        own = [pid for pid in pids if self._marker.encode() in _read(pid, "environ").split(b"\0")]
        return [pid for pid in own if b") Z " not in _read(pid, "stat")]

    def holds(self) -> set[str]:
        """What another job might take for its own: ports, names of sockets, shared memory, keys, files of Farandole."""
        return {each for pid in self.processes() for each in _holds(pid)}


def _holds(pid: int) -> set[str]:
    held = {f"key {word.decode()}" for word in _read(pid, "environ").split(b"\0") if word.startswith(b"FARANDOLE_KEY=")}
    for line in _read(pid, "maps").decode().splitlines():
        _, permissions, _, device, inode, *_ = line.split()
        held |= {f"memory {device} {inode}"} if permissions == "rw-s" else set()
    links = [_link(pid, name) for name in _names(pid)]
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in _read(pid, f"net/{table}").decode().splitlines()[1:]]
        held |= {f"port {row[1].rpartition(':')[2]}" for row in rows if row[3] == LISTENS and row[9] in sockets}
    rows = [line.split() for line in _read(pid, "net/unix").decode().splitlines()[1:]]
    held |= {f"socket {row[7]}" for row in rows if len(row) > 7 and row[6] in sockets}
    return held | {f"file {link}" for link in links if "farandole-" in link and not link.startswith("/memfd:")}


def _names(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError:
        return ""


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""
