"""Base class of pools whose workers run on other hosts, where agents start and watch them.

A ``HostPool`` starts the agents on known hosts; to a ``LeasePool`` agents connect by themselves. Agents send the search
the same messages as a launcher: they report starts and exits of workers, pass on output, and count as lost when they
are silent. An agent that was disconnected for a while reports which workers run and which have exited, which replaces
messages that were lost.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.cluster.contact import Contact
from farandole.cluster.environment import OWN
from farandole.control.agent_messages import (
    AGENT,
    AgentHello,
    Goodbye,
    KillWorker,
    Leaving,
    Output,
    Report,
    Started,
    StartWorkers,
    StopWorkers,
    WorkerSpec,
    Written,
)
from farandole.control.entry import entry_command
from farandole.control.exits import WorkerExited
from farandole.control.process import describe
from farandole.errors import ControlError
from farandole.events import logger
from farandole.launch.hosts.remote_environment import for_other_hosts
from farandole.runtime.coordination.downlink import Send
from farandole.runtime.coordination.host_liveness import HostLiveness
from farandole.search.pools import MOST_EARLY, Pool, ProcessEnded
from farandole.search.worker import MODULE, worker_environment
from farandole.settings import Settings
from farandole.version import __version__


class AgentPool(Pool):
    """Pool of workers by host, which agents report; their output outside of trials goes to the file ``output``."""

    reaches_out = True
    words: tuple[str, ...] = ()
    """Arguments of the workers."""

    def __init__(self, slots: Mapping[str, int], output: Path, python_path: Sequence[str], settings: Settings) -> None:
        self._slots = dict(slots)
        self._leaving: set[str] = set()
        self._output, self._python_path, self._settings = output, list(python_path), settings
        self._liveness = HostLiveness(settings.host_timeout_s)
        self._contact: Contact | None = None
        self._send: Send = lambda _identity, _message: False
        self._ordered: dict[int, str] = {}  # hosts of workers that were ordered and have not ended, by worker id
        self._pids: dict[int, tuple[str, int]] = {}  # host and pid of workers that have started
        self._doomed: set[tuple[str, int]] = set()  # host and pid of workers to kill
        self._ended: set[tuple[str, int]] = set()
        self._next, self._early = 0, 0

    @abstractmethod
    def _refusal(self, hello: AgentHello) -> str:
        """Reason why the agent of an unknown host cannot take part; "" if the host was added."""

    @abstractmethod
    def _leaves(self, host: str) -> list[ProcessEnded]:
        """Handle that a scheduler takes a host back; returns the processes that end by that."""

    @abstractmethod
    def _lost(self, host: str, reason: str) -> None:
        """Handle the loss of a host; raises ``ControlError`` if the search cannot go on."""

    @property
    def size(self) -> int:
        """See ``Pool``."""
        return sum(self._slots.values())

    @property
    def slots(self) -> Mapping[str, int]:
        """See ``Pool``."""
        return self._slots

    @property
    def leaving(self) -> Collection[str]:
        """See ``Pool``."""
        return self._leaving

    def connect(self, send: Send) -> None:
        """See ``Pool``."""
        self._send = send

    @property
    def deadline_s(self) -> float:
        """See ``Pool``."""
        moment = self._liveness.deadline_s
        return math.inf if moment is None else moment

    def tick(self, now: float) -> list[ProcessEnded]:
        """See ``Pool``."""
        return [each for lost in self._liveness.lost(now) for each in self._lose(*lost)]

    def take(self, identity: bytes, message: Any) -> list[ProcessEnded]:
        """See ``Pool``."""
        host = identity.removeprefix(AGENT).decode(errors="replace").partition("/")[0]
        if host not in self._slots and host not in self._leaving:
            if not isinstance(message, AgentHello):
                return []
            if refusal := self._refusal(message):
                logger.warning("host %s takes no part in the search: %s", host, refusal)
                self._tell(host, StopWorkers(0.0))
                return []
        self._liveness.heard(host, time.monotonic())
        return self._heard(host, message)

    def _heard(self, host: str, message: Any) -> list[ProcessEnded]:
        """Handle a message of an agent that takes part."""
        if isinstance(message, AgentHello):
            if message.version != __version__:
                return self._lose(host, f"host {host} has Farandole {message.version}, and this one {__version__}")
            return self._on_hello(host, message)
        if isinstance(message, Started):
            self._on_started(host, message)
        elif isinstance(message, Report):
            return self._on_exit(host, message.exited)
        elif isinstance(message, Output):
            self._write(message.text)
            self._tell(host, Written(message.stream, len(message.text)))
        elif isinstance(message, Leaving):
            return self._leaves(host)
        elif isinstance(message, Goodbye):
            return self._lose(host, f"the agent on {host} has ended")
        return []

    def dismiss(self, host: str) -> list[ProcessEnded]:
        """See ``Pool``."""
        return self._lose(host, "its workers have left, as its scheduler wants it back")

    def came(self, host: str, pid: int) -> bool:
        """See ``Pool``. The agent may report the start of this process later."""
        self._early = 0
        return host in self._slots and (host, pid) not in self._ended

    def kill(self, host: str, pid: int) -> None:
        """See ``Pool``."""
        self._doomed.add((host, pid))  # for an agent that is disconnected, or has not reported the start yet
        for worker_id in [each for each, place in self._pids.items() if place == (host, pid)]:
            self._tell(host, KillWorker(worker_id))

    def end_now(self) -> None:
        """See ``Pool``."""
        for host in self._slots:
            self._tell(host, StopWorkers(0.0))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _tell(self, host: str, message: Any) -> None:
        self._send(AGENT + host.encode(), message)

    def _start(self, host: str, count: int) -> None:
        """Order the agent of ``host`` to start ``count`` workers."""
        assert self._contact is not None
        environment = worker_environment(self._contact, for_other_hosts(os.environ))
        known = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([*self._python_path, *([known] if known else [])])
        environment[OWN.hostname] = host
        specs = [WorkerSpec(self._next + i, [*entry_command(MODULE), *self.words], {}) for i in range(count)]
        self._ordered.update({spec.worker_id: host for spec in specs})
        self._next += count
        if specs:
            self._tell(host, StartWorkers(specs, environment, cwd=os.getcwd(), size=self.size))

    def _on_hello(self, host: str, hello: AgentHello) -> list[ProcessEnded]:
        """Compare the workers of an agent that connects, or reconnects, with the order, and start missing workers."""
        for each in hello.running:
            self._on_started(host, each)
        ended, running = {each.worker_id: each for each in hello.ended}, {each.worker_id for each in hello.running}
        gone = [each for each, own in self._ordered.items() if own == host and each not in running]
        found = []
        for worker_id in gone:  # exited, or never started because the order was lost
            exited = ended.get(worker_id, WorkerExited(worker_id, -signal.SIGKILL, error="its end was not told"))
            found += self._take_out(host, exited)
        self._start(host, self._slots.get(host, 0) - sum(own == host for own in self._ordered.values()))
        return found

    def _on_started(self, host: str, started: Started) -> None:
        self._pids[started.worker_id] = place = host, started.pid
        self._ended.discard(place)
        if started.worker_id not in self._ordered or place in self._doomed:  # the worker was given up
            self._tell(host, KillWorker(started.worker_id))

    def _on_exit(self, host: str, exited: WorkerExited) -> list[ProcessEnded]:
        if exited.worker_id not in self._ordered:  # its exit was reported before
            return self._take_out(host, exited) if exited.worker_id in self._pids else []
        if host in self._slots:  # on a host that leaves, exits are no fault
            self._early += 1
        if self._early > max(MOST_EARLY, self.size):
            raise ControlError(
                f"the workers of the search end before they have begun: the last one, on {host}, "
                f"{exited.error or describe(exited.code)}; what they have written is in {self._output}"
            )
        found = self._take_out(host, exited)
        if host in self._slots:
            self._start(host, 1)
        return found

    def _take_out(self, host: str, exited: WorkerExited) -> list[ProcessEnded]:
        self._ordered.pop(exited.worker_id, None)
        place = self._pids.pop(exited.worker_id, (host, exited.pid))
        self._ended.add(place)
        self._doomed.discard(place)
        return [ProcessEnded(place[1], exited.code, exited.error or describe(exited.code), host)]

    def _lose(self, host: str, reason: str) -> list[ProcessEnded]:
        """Go on without a host: all its workers count as dead."""
        if self._slots.pop(host, None) is None and host not in self._leaving:
            return []
        self._leaving.discard(host)
        logger.warning("the search goes on without host %s: %s", host, reason)
        self._liveness.ended(host)
        self._tell(host, StopWorkers(0.0))  # in case its agent reconnects
        self._lost(host, reason)
        gone = [(worker_id, pid) for worker_id, (own, pid) in self._pids.items() if own == host]
        for worker_id, pid in gone:
            del self._pids[worker_id]
            self._ended.add((host, pid))
        self._ordered = {worker_id: own for worker_id, own in self._ordered.items() if own != host}
        self._doomed = {place for place in self._doomed if place[0] != host}
        return [ProcessEnded(pid, -signal.SIGKILL, f"is lost with its host: {reason}", host) for _, pid in gone]

    def _write(self, text: bytes) -> None:
        try:
            with open(
                os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(text)
        except OSError as error:
            sys.stderr.write(f"farandole: {self._output}: {error.strerror}\n")
