"""Provider of processes on this host, as children of this process.

provider = LocalProvider(4, folder / "output" / "workers.txt", own_path())
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from farandole.cluster.contact import Contact
from farandole.control import process
from farandole.control.agent_messages import Started, WorkerSpec
from farandole.control.exits import WorkerExited
from farandole.launch.providers.provider import (
    END_S,
    LEAVE_S,
    HostOffered,
    Provider,
    ProviderEvent,
    environment_of,
    words_of,
)
from farandole.runtime.coordination.downlink import Send


@final
class _Child(NamedTuple):
    """Process that runs, and the pidfd that becomes readable when it exits."""

    pid: int
    fd: int


@final
class LocalProvider(Provider):
    """Up to ``np`` processes on this host, whose output goes to the file ``output``.

    The kernel kills the processes when the thread that has started them ends, for whatever reason.
    """

    def __init__(self, np: int, output: Path, python_path: Sequence[str] = ()) -> None:
        super().__init__()
        self.slots = {socket.gethostname(): np}
        self._output, self._python_path = output, list(python_path)
        self._children: dict[int, _Child] = {}

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        self._news += [HostOffered(host, slots) for host, slots in self.slots.items()]

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        """See ``Provider``."""
        output = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            for worker in workers:
                self._news.append(self._start(worker, output))
        finally:
            os.close(output)

    def kill(self, host: str, worker_id: int, number: int = signal.SIGKILL) -> None:
        """See ``Provider``."""
        if worker_id in self._children:  # else another process may have its pid by now
            _signal(self._children[worker_id], number)

    @property
    def fds(self) -> Collection[int]:
        """See ``Provider``."""
        return [child.fd for child in self._children.values()]

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        """See ``Provider``."""
        for worker_id, child in list(self._children.items()):
            if child.fd in ready:
                code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                self._forget(worker_id)
                self._news.append(WorkerExited(worker_id, code, pid=child.pid))
        return self._told()

    def close(self) -> None:
        """See ``Provider``."""
        # The last entry is the next signal. Signals go to whole sessions, so a worker's data loaders get them, too.
        begun_s, due = time.monotonic(), [(END_S, signal.SIGKILL), (LEAVE_S, signal.SIGTERM)]
        while self._children:
            if time.monotonic() >= begun_s + (due[-1][0] if due else math.inf):
                number = due.pop()[1]
                for child in self._children.values():
                    _signal(child, number)
            for worker_id, child in list(self._children.items()):
                if os.waitpid(child.pid, os.WNOHANG)[0]:
                    self._forget(worker_id)
            select.select(list(self.fds), [], [], 0.05)

    def explain(self, exited: WorkerExited) -> str:
        """See ``Provider``."""
        return f" {words_of(exited)}; what they have written is in {self._output}"

    def _start(self, worker: WorkerSpec, output: int) -> Started | WorkerExited:
        environment = {**environment_of(os.environ, self._python_path), **worker.environment}
        try:
            # The kernel binds it to this thread, not to this process.
            command = process.bound(worker.command, signal.SIGKILL, environment)
            pid = process.spawn(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, environment=environment
            )
        except OSError as error:
            code, words = process.refusal(worker.command, error)
            return WorkerExited(worker.worker_id, code, error=words)
        self._children[worker.worker_id] = _Child(pid, os.pidfd_open(pid))
        return Started(worker.worker_id, pid)

    def _forget(self, worker_id: int) -> None:
        os.close(self._children.pop(worker_id).fd)


def _signal(child: _Child, number: int) -> None:
    """Signal a process, which is not reaped, and its children: each process leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
