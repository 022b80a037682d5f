"""Agents of an elastic job by host: children of the launcher, and agents of leases, which connect by themselves.

agents = ElasticAgents(elastic, settings, secret, children)
agents.addresses = ["tcp://10.0.0.1:4711"]
agents.add("b", "b/1")                  # starts the agent of host b, which identifies itself as b/1
agents.of("b").explain()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, final

import msgspec

from farandole.errors import UsageError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.agents import AgentProcess, Agents
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.settings import Settings


class AbsentAgent:
    """Agent that is no child of the launcher: of a leased host, or in slots, or one that could not start (``why``)."""

    fds: tuple[int, ...] = ()
    inherits = False
    said = ""

    def __init__(self, host: str, why: str = "") -> None:
        self.hosts: tuple[str, ...] = (host,)
        self.code = 1 if why else None
        self.why = why

    @property
    def has_ended(self) -> bool:
        """True if the loop need not wait for this agent."""
        return self.code is not None or not self.hosts

    def attend(self) -> None:
        """Do nothing: there is no child."""

    def explain(self) -> str:
        """The reason why it could not be started, or was lost."""
        return self.why

    def print_text(self, text: bytes) -> bytes:
        """Write nothing, and return all of ``text``."""
        return text

    def give_up(self) -> None:
        """Stop waiting for this agent."""
        self.hosts = ()


ElasticAgent: TypeAlias = AgentProcess | AbsentAgent


@final
class ElasticAgents:
    """One agent for each host that the job uses; it outlives a controller that fails.

    ``addresses``: those of the controller, for agents. ``names``: the last name of each host's agent.
    """

    def __init__(self, elastic: ElasticJob, settings: Settings, secret: str, children: Agents) -> None:
        self._elastic, self._settings, self._secret, self._children = elastic, settings, secret, children
        self.addresses: Sequence[str] = ()
        self.names: dict[str, str] = {}
        self._by_host: dict[str, ElasticAgent] = {}
        self._replaced: list[AgentProcess] = []
        """Children whose host is lost, or has a newer agent, until they have exited."""
        self._unwatched: list[AgentProcess] = []
        """Exited children without descriptors to watch since the last ``drop_exited``."""

    def __iter__(self) -> Iterator[ElasticAgent]:
        return iter([*self._by_host.values(), *self._replaced])

    def of(self, host: str) -> ElasticAgent:
        """The agent of ``host``."""
        return self._by_host[host]

    def add(self, host: str, name: str) -> None:
        """Start an agent on ``host`` that identifies itself as ``name``; no other agent ever has that name.

        If it cannot start, its ``code`` is 1, and ``explain`` returns the reason.
        """
        self.names[host] = name
        self.forget(host)
        try:
            [group] = self._elastic.starter.groups([host], self._elastic.here)
            child = self._children.add(group)
        except UsageError as error:
            self._by_host[host] = AbsentAgent(host, str(error))
            return
        self._by_host[host] = child
        config = LaunchedAgentConfig.of(self._settings, list(self.addresses), self._secret)
        child.config(msgspec.structs.replace(config, host=host, stays=True, name=name))

    def admit(self, host: str) -> None:
        """Add the agent of a leased host, which is no child of the launcher."""
        self._by_host[host] = AbsentAgent(host)

    def forget(self, host: str) -> None:
        """Remove the agent of a host."""
        agent = self._by_host.pop(host, None)
        if isinstance(agent, AgentProcess):
            agent.hosts = ()  # else its exit would count as that of its successor
            self._replaced.append(agent)

    def keep_running(self) -> None:
        """Remove all agents that have exited or were given up; the next controller knows only the others."""
        for host, agent in list(self._by_host.items()):
            if agent.code is not None or not agent.hosts or isinstance(agent, AbsentAgent):
                self.forget(host)

    def drop_exited(self) -> None:
        """Free the resources of exited children; call it once after each update of the watched descriptors."""
        while self._unwatched:
            self._children.drop(self._unwatched.pop())
        self._replaced = [child for child in self._replaced if child.code is None or child.fds]
        self._unwatched = [child for child in self._children if child.code is not None and not child.fds]
