"""Pool of warm workers on several hosts, started by agents of the same kind as a launcher's.

    pool = HostPool("a:4,b:4", output, own_path(), settings)

Agents are started over ssh, or by Slurm's ``srun`` inside an allocation. A lost host is not used again; the search goes
on with the other hosts. All hosts must share the folder of the search.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import final

import msgspec

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AgentHello
from farandole.errors import ControlError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import Agents
from farandole.launch.agents.local import Local
from farandole.launch.hosts.placement import read_hosts, where
from farandole.launch.hosts.starters import Means
from farandole.search.agent_pool import AgentPool
from farandole.search.pools import ProcessEnded
from farandole.settings import Settings


@final
class HostPool(AgentPool):
    """Processes on ``hosts``, such as ``"a:4,b:4"``, whose output outside of trials goes to the file ``output``."""

    def __init__(self, hosts: str, output: Path, python_path: Sequence[str], settings: Settings) -> None:
        named = read_hosts(hosts, "")
        placed = where(None, named, Means(), os.environ, socket.gethostname())
        self._starter = placed.starter or Local()
        self._agents: Agents | None = None
        super().__init__(Counter(placed.hosts), output, python_path, settings)

    def start(self, contact: Contact) -> None:
        """See ``Pool``."""
        self._contact = contact
        groups = self._starter.groups(tuple(self._slots), socket.gethostname())
        self._agents = Agents(groups, self._settings, captured=True)
        until_s = time.monotonic() + self._settings.start_timeout_s
        config = LaunchedAgentConfig.of(self._settings, list(contact.addresses), contact.key)
        for agent in self._agents:
            host = agent.hosts[0] if len(agent.hosts) == 1 else ""  # else Slurm's name of the host
            agent.config(msgspec.structs.replace(config, host=host, stays=True))
        for host in self._slots:
            self._liveness.expect(host, until_s)

    @property
    def fds(self) -> Collection[int]:
        """See ``Pool``."""
        return {fd for agent in self._agents or () for fd in agent.fds}

    def attend(self, ready: Collection[int]) -> list[ProcessEnded]:
        """See ``Pool``."""
        ended = []
        for agent in self._agents or ():
            if not set(ready).isdisjoint(agent.fds):
                agent.attend()
                if agent.code is not None:
                    for host in agent.hosts:
                        ended += self._lose(host, agent.explain())
        return ended

    def close(self) -> None:
        """See ``Pool``."""
        agents, self._agents = self._agents, None
        if agents is not None:
            agents.close()  # agents end with their standard input, and workers with their agents

    def _refusal(self, hello: AgentHello) -> str:
        return f"{hello.host} was given up"

    def _leaves(self, host: str) -> list[ProcessEnded]:
        return self._lose(host, f"the agent on {host} ends: its scheduler wants the host back")

    def _lost(self, host: str, reason: str) -> None:
        for agent in self._agents or ():
            if host in agent.hosts and not set(agent.hosts) & self._slots.keys():
                agent.give_up()
        if not self._slots:
            raise ControlError(f"no host of the search is left; the last one was {host}: {reason}")
