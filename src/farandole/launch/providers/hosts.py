"""Providers of processes on other hosts, where agents start and watch them.

    provider = HostProvider("a:4,b:4", output, own_path(), settings)

A ``HostProvider`` starts the agents itself, over ssh, or by Slurm's ``srun`` inside an allocation; to a
``LeaseProvider`` agents connect by themselves. Agents send the same messages as to a launcher. A silent host is lost,
and not used again. All hosts must share the folder of ``output``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

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
from farandole.control.exits import HostLost, WorkerExited
from farandole.events import logger
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import Agents
from farandole.launch.agents.local import Local
from farandole.launch.hosts.placement import read_hosts, where
from farandole.launch.hosts.remote_environment import for_other_hosts
from farandole.launch.hosts.starters import Means
from farandole.launch.providers.provider import (
    HostOffered,
    Provider,
    ProviderEvent,
    environment_of,
    words_of,
)
from farandole.runtime.coordination.downlink import Send
from farandole.runtime.coordination.host_liveness import HostLiveness
from farandole.settings import Settings
from farandole.version import __version__


class AgentProvider(Provider):
    """Processes that agents start; their output goes to the file ``output``."""

    reaches_out = True

    def __init__(self, slots: Mapping[str, int], output: Path, python_path: Sequence[str], settings: Settings) -> None:
        super().__init__()
        self.slots: dict[str, int] = dict(slots)  # hosts that take part: they are neither refused nor lost
        self._output, self._python_path, self._settings = output, list(python_path), settings
        self._liveness = HostLiveness(settings.host_timeout_s)
        self._send: Send = lambda _identity, _message: False

    @abstractmethod
    def _refusal(self, hello: AgentHello) -> str:
        """Reason why the agent of an unknown host cannot take part; "" if the host was added."""

    @abstractmethod
    def _on_leaving(self, host: str) -> None:
        """Handle that a scheduler takes a host back."""

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        self._send = send

    def start(self, host: str, workers: Sequence[WorkerSpec]) -> None:
        """See ``Provider``. The order is lost while the agent is disconnected."""
        environment = environment_of(for_other_hosts(os.environ), self._python_path)
        environment[OWN.hostname] = host
        self._send_to_agent(
            host, StartWorkers(list(workers), environment, cwd=os.getcwd(), size=sum(self.slots.values()))
        )

    def kill(self, host: str, worker_id: int, number: int = signal.SIGKILL) -> None:
        """See ``Provider``. The order is lost while the agent is disconnected."""
        self._send_to_agent(host, KillWorker(worker_id))

    @property
    def deadline_s(self) -> float:
        """See ``Provider``."""
        moment = self._liveness.deadline_s
        return super().deadline_s if moment is None else min(moment, super().deadline_s)

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        """See ``Provider``."""
        for identity, message in mail:
            if identity.startswith(AGENT):
                self._handle_agent_message(
                    identity.removeprefix(AGENT).decode(errors="replace").partition("/")[0], message, now
                )
        self._attend(ready)
        for lost in self._liveness.lost(now):
            self._lose(lost.host, lost.reason)
        return self._told()

    def explain(self, exited: WorkerExited) -> str:
        """See ``Provider``."""
        return f", on {exited.host}, {words_of(exited)}; what they have written is in {self._output}"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _attend(self, ready: Collection[int]) -> None:
        """Handle ready descriptors."""

    def _send_to_agent(self, host: str, message: Any) -> None:
        self._send(AGENT + host.encode(), message)

    def _handle_agent_message(self, host: str, message: Any, now: float) -> None:
        """Handle a message of an agent."""
        if host not in self.slots:
            if not isinstance(message, AgentHello):
                return
            if refusal := self._refusal(message):
                logger.warning("host %s takes no part in the search: %s", host, refusal)
                self._send_to_agent(host, StopWorkers(0.0))
                return
        self._liveness.heard(host, now)
        if isinstance(message, AgentHello):
            self._on_hello(host, message)
        elif isinstance(message, Started):
            self._news.append(message)
        elif isinstance(message, Report):
            self._news.append(msgspec.structs.replace(message.exited, host=host))
        elif isinstance(message, Output):
            self._write(message.text)
            self._send_to_agent(host, Written(message.stream, len(message.text)))
        elif isinstance(message, Leaving):
            self._on_leaving(host)
        elif isinstance(message, Goodbye):
            self._lose(host, f"the agent on {host} has ended")

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        """Offer the host of an agent that connects, or reconnects."""
        if hello.version != __version__:
            self._lose(host, f"host {host} has Farandole {hello.version}, and this one {__version__}")
        else:
            self._news.append(HostOffered(host, self.slots[host], hello.running, hello.ended))

    def _lose(self, host: str, reason: str) -> None:
        """Go on without a host."""
        if self.slots.pop(host, None) is not None:
            self._liveness.ended(host)
            self._send_to_agent(host, StopWorkers(0.0))  # in case its agent reconnects
            self._news.append(HostLost(host, reason))

    def _write(self, text: bytes) -> None:
        try:
            with open(
                os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(text)
        except OSError as error:
            sys.stderr.write(f"farandole: {self._output}: {error.strerror}\n")


@final
class HostProvider(AgentProvider):
    """Processes on ``hosts``, such as ``"a:4,b:4"``, whose agents it starts."""

    def __init__(self, hosts: str, output: Path, python_path: Sequence[str], settings: Settings) -> None:
        placed = where(None, read_hosts(hosts, ""), Means(), os.environ, socket.gethostname())
        self._starter = placed.starter or Local()
        self._agents: Agents | None = None
        super().__init__(Counter(placed.hosts), output, python_path, settings)

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        super().open(contact, send)
        groups = self._starter.groups(tuple(self.slots), socket.gethostname())
        self._agents = Agents(groups, self._settings, captured=True)
        until_s = time.monotonic() + self._settings.start_timeout_s
        config = LaunchedAgentConfig.of(self._settings, list(contact.addresses), contact.key)
        for agent in self._agents:
            host = agent.hosts[0] if len(agent.hosts) == 1 else ""  # else Slurm's name of the host
            agent.config(msgspec.structs.replace(config, host=host, stays=True))
        for host in self.slots:
            self._liveness.expect(host, until_s)

    @property
    def fds(self) -> Collection[int]:
        """See ``Provider``."""
        return {fd for agent in self._agents or () for fd in agent.fds}

    def close(self) -> None:
        """See ``Provider``."""
        agents, self._agents = self._agents, None
        if agents is not None:
            agents.close()  # agents end with their standard input, and workers with their agents

    def _attend(self, ready: Collection[int]) -> None:
        for agent in self._agents or ():
            if not set(ready).isdisjoint(agent.fds):
                agent.attend()
                if agent.code is not None:
                    for host in agent.hosts:
                        self._lose(host, agent.explain())

    def _refusal(self, hello: AgentHello) -> str:
        return f"{hello.host} was given up"

    def _on_leaving(self, host: str) -> None:
        self._lose(host, f"the agent on {host} ends: its scheduler wants the host back")

    def _lose(self, host: str, reason: str) -> None:
        super()._lose(host, reason)
        for agent in self._agents or ():
            if host in agent.hosts and not set(agent.hosts) & self.slots.keys():
                agent.give_up()
