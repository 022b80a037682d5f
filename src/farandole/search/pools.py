"""Pools of warm workers: processes that are started once, and join trial after trial.

    with LocalPool(4, output) as pool:
        pool.start(contact)
        ready = wait for pool.fds                           # a process has ended
        for ended in pool.attend(ready): ...
        pool.kill(host, pid)

A pool starts processes, and replaces processes that exit. It knows nothing of trials: its processes connect to the
search and send ``PoolHello``.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final, runtime_checkable

from farandole.cluster.contact import Contact
from farandole.control import process
from farandole.control.entry import entry_command
from farandole.errors import ControlError, UsageError
from farandole.runtime.coordination.downlink import Send
from farandole.search.worker import MODULE, worker_environment

if TYPE_CHECKING:
    from typing_extensions import Self

LEAVE_S, END_S = 0.5, 5.0
"""Seconds from the end of the search until processes that still run get SIGTERM, and until they are killed."""

MOST_EARLY = 5
"""Number of processes in a row that may exit before they have connected to the search."""


class ProcessEnded(NamedTuple):
    """Exit of a process of a pool; ``words`` describe it. In a pool on one host, ``host`` may be ""."""

    pid: int
    code: int
    words: str
    host: str = ""


class Pool(ABC):
    """Processes for a search; used by one thread, which must live as long as these processes."""

    reaches_out = False
    """True if its processes may be on other hosts than the search."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of workers when all have started."""

    remedy = "the same call with other hosts goes on"
    """Advice in the error that too few workers are left for any trial."""

    may_grow = False
    """True if more workers may join, so that a search without workers waits."""

    @property
    def leaving(self) -> Collection[str]:
        """Hosts whose workers must leave their trials at the next commit, and join no other trial."""
        return ()

    def dismiss(self, host: str) -> list[ProcessEnded]:
        """Release a ``leaving`` host on which no trial runs any more; returns the processes that end by that."""
        return []

    @property
    def slots(self) -> Mapping[str, int] | None:
        """Number of workers by host; ``None`` if the pool loses none, because it replaces them."""
        return None

    @property
    def deadline_s(self) -> float:
        """Time at which ``tick`` is due."""
        return math.inf

    def connect(self, send: Send) -> None:  # noqa: B027 (most pools send nothing)
        """Set the function that sends messages to the agents of this pool."""

    def take(self, identity: bytes, message: Any) -> list[ProcessEnded]:
        """Handle a message of an agent; returns the processes that have exited."""
        return []

    def tick(self, now: float) -> list[ProcessEnded]:
        """Do what is due; returns the processes that have exited."""
        return []

    @abstractmethod
    def start(self, contact: Contact) -> None:
        """Start all processes, which find the search by ``contact``."""

    @property
    @abstractmethod
    def fds(self) -> Collection[int]:
        """Descriptors that become readable when there is something to ``attend`` to."""

    @abstractmethod
    def attend(self, ready: Collection[int]) -> list[ProcessEnded]:
        """Return the processes that have exited, and start others in their place; this may close descriptors.

        Raises ``ControlError`` if no process can be kept running.
        """

    @abstractmethod
    def came(self, host: str, pid: int) -> bool:
        """Note that a process has connected to the search; false if it has exited since."""

    @abstractmethod
    def kill(self, host: str, pid: int) -> None:
        """Kill a process and its children; ``attend`` returns its exit."""

    def spare(self, host: str, pid: int) -> None:  # noqa: B027 (in most pools a kill acts at once)
        """Cancel a ``kill`` that was only an interrupt: the process has left its trial, and exits by itself."""

    @abstractmethod
    def end_now(self) -> None:
        """Kill all processes; ``close`` then need not wait."""

    @abstractmethod
    def close(self) -> None:
        """End all processes, which first get some time to exit by themselves. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@runtime_checkable
class PoolSource(Protocol):
    """Object that makes a pool, such as the engines that ``farandole.notebook.attach`` has made ranks."""

    def search_pool(self) -> Pool:
        """A pool of the current workers."""
        ...


@final
class LocalPool(Pool):
    """Processes on this host, whose output outside of trials goes to the file ``output``.

    The kernel kills the processes when the thread that has started them ends, for whatever reason.
    """

    def __init__(self, np: int, output: Path, python_path: Sequence[str] = ()) -> None:
        if np < 1:
            raise UsageError(f"pool={np} has no worker; give at least 1")
        self._np, self._output, self._python_path = np, output, list(python_path)
        self._contact: Contact | None = None
        self._pids: dict[int, int] = {}  # by pidfd
        self._early = 0

    @property
    def size(self) -> int:
        """See ``Pool``."""
        return self._np

    def start(self, contact: Contact) -> None:
        """See ``Pool``."""
        self._contact = contact
        for _ in range(self._np):
            self._spawn(contact)

    @property
    def fds(self) -> Collection[int]:
        """See ``Pool``."""
        return self._pids

    def attend(self, ready: Collection[int]) -> list[ProcessEnded]:
        """See ``Pool``."""
        ended = []
        for fd in [fd for fd in self._pids if fd in ready]:
            pid = self._pids.pop(fd)
            os.close(fd)
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            ended.append(ProcessEnded(pid, code, process.describe(code)))
            self._early += 1
            if self._early > max(MOST_EARLY, self._np):
                raise ControlError(
                    f"the workers of the search end before they have begun: the last one {process.describe(code)}; "
                    f"what they have written is in {self._output}"
                )
            assert self._contact is not None
            self._spawn(self._contact)
        return ended

    def came(self, host: str, pid: int) -> bool:
        """See ``Pool``."""
        self._early = 0
        return pid in self._pids.values()

    def kill(self, host: str, pid: int) -> None:
        """See ``Pool``."""
        if pid in self._pids.values():  # else another process may have this pid by now
            _signal(pid, signal.SIGKILL)

    def close(self) -> None:
        """See ``Pool``."""
        # The last entry is the next signal. Signals go to whole sessions, so a worker's data loaders get them, too.
        begun_s, due = time.monotonic(), [(END_S, signal.SIGKILL), (LEAVE_S, signal.SIGTERM)]
        while self._pids:
            if time.monotonic() >= begun_s + (due[-1][0] if due else math.inf):
                number = due.pop()[1]
                for pid in self._pids.values():
                    _signal(pid, number)
            for fd, pid in list(self._pids.items()):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    os.close(fd)
                    del self._pids[fd]
            select.select(list(self._pids), [], [], 0.05)

    def end_now(self) -> None:
        """See ``Pool``."""
        for pid in self._pids.values():
            _signal(pid, signal.SIGKILL)  # the pid is still its own, because only ``attend`` reaps

    def _spawn(self, contact: Contact) -> None:
        environment = worker_environment(contact, os.environ)
        known = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*self._python_path, *([known] if known else [])])
        # The kernel binds it to this thread, not to this process: so a pool must live in a thread that stays.
        command = process.bound(entry_command(MODULE), signal.SIGKILL, environment)
        fd = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pid = process.spawn(command, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, environment=environment)
        finally:
            os.close(fd)
        self._pids[os.pidfd_open(pid)] = pid


def _signal(pid: int, number: int) -> None:
    """Signal a process and its children: each process of a pool leads a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def own_path() -> list[str]:
    """Folders in which this process finds modules; a function that is pickled by name needs them in the workers."""
    return [os.path.abspath(each or ".") for each in sys.path]
