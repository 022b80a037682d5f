"""Host discovery of an elastic job: a fixed list, a watched file, a script, or the nodes of a Slurm job.

    discovery = Script("./discover.sh", slots_each=1)
    wait_for(discovery.fds, until=discovery.deadline_s)
    hosts = discovery.look(time.monotonic())        # None: unchanged

No call blocks. A failed read is reported once, and the hosts stay unchanged (initially none).

All of it runs in the thread of the controller's loop, except ``Watched._read``: a read of a file system that does not
answer never times out, and a controller that waited for it would stop the job. The reading thread sets ``_found`` and
signals ``_wakeup``; the loop reads and clears ``_found``. Only the loop uses ``_is_reading``, which lets one thread run
at a time, so each field has one writer, and no lock is needed. A ``Discovery`` is copied for each controller
(``elastic_launcher``); hence it opens nothing before ``look``.
"""

from __future__ import annotations

import math
import shlex
import shutil
import statistics
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import final

from farandole.cluster.hostlist import expand
from farandole.control import process
from farandole.control.program_run import ProgramRun
from farandole.control.wakeup import Wakeup
from farandole.errors import UsageError
from farandole.launch.hosts.plan import Host, parse_host_lines
from farandole.launch.sbatch.environment import client_environment

EVERY_S = 1.0
"""Pause between two reads of a file, or two runs of a script."""

SCRIPT_S = 30.0
"""Timeout of a script, and time after which the user is told that a file cannot be read."""

LONGEST_REASON = 500


class Discovery(ABC):
    """Hosts and their slots."""

    def __init__(self, source: str, every_s: float = EVERY_S) -> None:
        self._source, self._every_s = source, every_s
        when = f"every {every_s:g} s" if every_s < math.inf else "when a host is lost"
        self._again = f"it is looked at again {when}"
        self.say: Callable[[str], object] = lambda _: None
        """Prints a text for the user."""
        self._last: tuple[Host, ...] | None = None
        self._has_inherited = False
        self._complaint = ""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """Time at which ``look`` may return hosts; ``None`` if that does not depend on time."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to poll; when one is readable, ``look`` may also return hosts."""
        return ()

    def look(self, now: float) -> tuple[Host, ...] | None:
        """Current hosts, in the order in which to fill them; ``None`` if unchanged since the last call.

        If the first call fails, it returns no hosts.
        """
        try:
            hosts = self._find(now)
        except UsageError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                so = "the hosts stay what they were" if self._last or self._has_inherited else "no host is known yet"
                self.say(f"{error}; {so}; {self._again}")
            if self._last is not None or self._has_inherited:
                return None
            self._last = ()  # starts the job's timeout for too few workers
            return ()
        if hosts is None:
            return None
        self._complaint = ""
        if hosts == self._last:
            return None
        self._last = hosts
        if not hosts:
            self.say(f"{self._source} names no host; {self._again}")
        return hosts

    def inherit(self) -> None:
        """Keep the hosts that the previous controller found, until this one finds any."""
        self._has_inherited = True

    def hurry(self) -> None:  # noqa: B027 (most look often enough)
        """Look again soon, because a host was lost."""

    @abstractmethod
    def _find(self, now: float) -> tuple[Host, ...] | None:
        """The hosts; ``None`` if unknown or not due. Raises ``UsageError`` for invalid or unreadable hosts."""

    def close(self) -> None:  # noqa: B027 (most have nothing to end)
        """End a running program, and free descriptors."""


@final
class Fixed(Discovery):
    """Fixed hosts, as given by ``-H``."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__("-H")
        self.hosts = tuple(hosts)
        self._hosts: tuple[Host, ...] | None = self.hosts

    @property
    def deadline_s(self) -> float | None:
        """0 until ``look`` has returned the hosts, then always ``None``."""
        return 0.0 if self._hosts is not None else None

    def _find(self, now: float) -> tuple[Host, ...] | None:
        hosts, self._hosts = self._hosts, None
        return hosts


@final
class Watched(Discovery):
    """Watched file with one host per line: ``NAME``, ``NAME:N`` or ``NAME slots=N``.

    A thread reads it, because a cluster's file system may not answer for minutes.
    """

    def __init__(self, path: str, slots_each: int) -> None:
        super().__init__(f"the host file {path}")
        self._path, self._slots_each = path, slots_each
        self._next_s = 0.0
        self._wakeup: Wakeup | None = None  # opened at the first look, in the controller
        self._is_reading = False
        self._found: bytes | OSError | None = None

    @property
    def deadline_s(self) -> float | None:
        """Time of the next read, or of the error about a read in progress."""
        return self._next_s

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptor that the reading thread signals."""
        return (self._wakeup.fd,) if self._wakeup is not None else ()

    def _find(self, now: float) -> tuple[Host, ...] | None:
        self._wakeup = self._wakeup or Wakeup()
        self._wakeup.clear()  # before ``_found``: a later read signals again
        if self._found is not None:
            return self._parse_found(self._found, now)
        if now < self._next_s:
            return None
        self._next_s = now + SCRIPT_S
        if self._is_reading:
            raise UsageError(f"{self._source} has not been read for {SCRIPT_S:g} s: its file system does not answer")
        self._is_reading = True
        # A daemon: stuck in the kernel it cannot be joined, and must not keep this process alive.
        threading.Thread(target=self._read, args=(self._wakeup,), name="farandole-hosts", daemon=True).start()
        return None

    def _parse_found(self, found: bytes | OSError, now: float) -> tuple[Host, ...]:
        self._is_reading, self._found, self._next_s = False, None, now + EVERY_S
        if isinstance(found, OSError):
            raise UsageError(f"{self._source} cannot be read: {found.strerror}") from found
        return parse_host_lines(found.decode(errors="replace"), self._slots_each, self._source)

    def _read(self, wakeup: Wakeup) -> None:
        try:
            with open(self._path, "rb") as file:
                self._found = file.read()
        except OSError as error:
            self._found = error
        wakeup.signal()  # last: the loop reads ``_found`` after this signal

    def close(self) -> None:
        """Free the descriptor; a read in progress ends by itself."""
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None


class PrintedHosts(Discovery):
    """Program that prints hosts, run again ``every_s`` after it has ended."""

    def __init__(
        self, source: str, command: Sequence[str], every_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(source, every_s)
        self._command, self._environment = list(command), environment
        self._run: ProgramRun | None = None
        self._last_run: ProgramRun | None = None  # kept open while the loop may watch its descriptors
        self._next_s = 0.0

    @property
    def deadline_s(self) -> float | None:
        """Time of the next start, or of the timeout of the current run."""
        return self._next_s if self._next_s < math.inf else None

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the current run: its output and its exit."""
        return self._run.fds if self._run is not None else ()

    def _find(self, now: float) -> tuple[Host, ...] | None:
        if self._run is None:
            if now >= self._next_s:
                self.close()  # the last run, only now: the loop no longer watches its descriptors
                self._next_s = now + self._every_s  # applies if the start fails
                self._run = ProgramRun(self._command, environment=self._environment)
                self._next_s = now + SCRIPT_S
            return None
        self._run.attend()
        if self._run.code is None and now < self._next_s:
            return None
        self._last_run, self._run, self._next_s = self._run, None, now + self._every_s
        self._last_run.end()
        return self._hosts(self._read(self._last_run))

    def _read(self, run: ProgramRun) -> str:
        name = self._command[0]
        if run.code is None:
            raise UsageError(f"{name} took longer than {SCRIPT_S:g} s and was killed")
        out, err = (text.decode(errors="replace") for text in run.said)
        if run.code:
            reason = f", and said: {err.strip()[-LONGEST_REASON:]}" if err.strip() else ""
            raise UsageError(f"{name} {process.describe(run.code)}{reason}")
        return out

    @abstractmethod
    def _hosts(self, printed: str) -> tuple[Host, ...]:
        """Parse the hosts in its output; raises ``UsageError``."""

    def close(self) -> None:
        """Kill the program if it runs, and free its descriptors."""
        for run in (self._run, self._last_run):
            if run is not None:
                run.end()
                run.close()
        self._run = self._last_run = None


@final
class Script(PrintedHosts):
    """User's program (``--host-discovery-script``) that prints one host per line, in the format of a host file."""

    def __init__(self, command: str, slots_each: int) -> None:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise UsageError(
                f"--host-discovery-script {command}: there is no such program that can be executed; write ./NAME for "
                "one in this folder, and type: chmod +x NAME"
            )
        super().__init__(f"what {command} prints", words, EVERY_S)
        self._slots_each = slots_each

    def _hosts(self, printed: str) -> tuple[Host, ...]:
        return parse_host_lines(printed, self._slots_each, self._source)


@final
class SlurmNodes(PrintedHosts):
    """Nodes of a Slurm job, which its owner may shrink or grow while it runs (``scontrol update``).

    ``hosts``: the initial nodes. ``squeue`` runs every ``every_s`` seconds (infinity: never), and after the loss of a
    host: Slurm kills the processes on nodes that it removes. A new node has the most common number of slots of the
    initial nodes.
    """

    def __init__(self, job: str, hosts: Sequence[Host], every_s: float, variables: Mapping[str, str]) -> None:
        command = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
        super().__init__(f"squeue of job {job}", command, every_s, client_environment(variables))
        self._first = tuple(hosts)
        self._slots = {host.name: host.slots for host in hosts}
        self._is_told = False

    def inherit(self) -> None:
        """Run ``squeue`` at once: the nodes may have changed since the beginning."""
        super().inherit()
        self._is_told = True

    def hurry(self) -> None:
        """See ``Discovery``."""
        if self._run is None:
            self._next_s = 0.0

    def _find(self, now: float) -> tuple[Host, ...] | None:
        if self._is_told:
            return super()._find(now)
        self._is_told, self._next_s = True, now + self._every_s
        return self._first

    def _hosts(self, printed: str) -> tuple[Host, ...]:
        if not printed.split():
            raise UsageError(f"{self._source} shows no node")
        nodes = expand(",".join(printed.split()))  # one line for each component of a heterogeneous job
        most = statistics.mode(self._slots.values())
        return tuple(Host(node, self._slots.get(node, most)) for node in nodes)
