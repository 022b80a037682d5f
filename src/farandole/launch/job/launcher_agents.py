"""Agents of an elastic job, as its controller sees them: children of the launcher, reached through a pipe.

agents = LauncherAgents(line, live=["a/1"], inherits=elastic.inherits)
agents.add("b", "b/1")
agents.take(AgentEnded("b/1", 255, "host b cannot be reached: ..."))
agents.of("b").explain()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import final

from farandole.launch.job.launcher_pipe import AbandonHost, AgentEnded, AgentSaid, LauncherPipe, StartAgent


@final
class LauncherAgent:
    """Launcher's child that starts, or is, the agent of one host; in the launcher itself it is an ``AgentProcess``."""

    fds: tuple[int, ...] = ()

    def __init__(self, line: LauncherPipe, name: str, *, inherits: bool) -> None:
        self.name = name
        self.hosts: tuple[str, ...] = (host_of(name),)
        self.code: int | None = None
        """Its exit status, or minus the signal that killed it; ``None`` while it runs."""
        self.said = ""
        """Last line that the child printed."""
        self.inherits = inherits
        """True if the agent inherits the launcher's environment variables."""
        self.why = ""
        self._line = line

    @property
    def has_ended(self) -> bool:
        """True if the loop need not wait for this agent."""
        return self.code is not None or not self.hosts

    def attend(self) -> None:
        """Do nothing: the launcher reads the child's output and reaps it."""

    def explain(self) -> str:
        """The launcher's text on why the child exited."""
        return self.why

    def tell(self, text: bytes) -> bytes:
        """Write nothing and return all of ``text``: these agents print only the lines of their workers."""
        return text

    def give_up(self) -> None:
        """End the child because its host is lost; ignore its messages from now on. Another agent may serve the host."""
        if self.hosts:
            self._line.send(AbandonHost(self.name))
        self.hosts = ()


@final
class LauncherAgents:
    """One agent for each host that the controller uses; ``inherits(host)`` gives ``LauncherAgent.inherits``."""

    def __init__(self, line: LauncherPipe, live: Iterable[str], *, inherits: Callable[[str], bool]) -> None:
        self._line, self._inherits = line, inherits
        self._by_host = {host_of(name): LauncherAgent(line, name, inherits=inherits(host_of(name))) for name in live}

    def __iter__(self) -> Iterator[LauncherAgent]:
        return iter(tuple(self._by_host.values()))

    def of(self, host: str) -> LauncherAgent:
        """The agent of ``host``."""
        return self._by_host[host]

    def add(self, host: str, name: str) -> None:
        """Request an agent on ``host`` from the launcher; the agent identifies itself as ``name``."""
        self._by_host[host] = LauncherAgent(self._line, name, inherits=self._inherits(host))
        self._line.send(StartAgent(host, name))

    def admit(self, host: str) -> None:
        """Add the agent of a leased host: not started by the launcher, it inherits none of the launcher's variables."""
        self._by_host[host] = LauncherAgent(self._line, host, inherits=False)

    def forget(self, host: str) -> None:
        """Remove the agent of a leased host; the launcher does not report its exit."""
        self._by_host.pop(host, None)

    def take(self, message: AgentSaid | AgentEnded) -> LauncherAgent | None:
        """Handle a message of the launcher; return the agent concerned, or ``None`` if that agent was given up."""
        agent = self._by_host.get(host_of(message.name))
        # The message may cross an order: the agent was given up meanwhile, or its host has a newer agent.
        if agent is None or agent.name != message.name or not agent.hosts:
            return None
        if isinstance(message, AgentSaid):
            agent.said = message.text
        else:
            agent.code, agent.why = message.code, message.why
        return agent


def host_of(name: str) -> str:
    """The host in the name of an agent, see ``Root.name``."""
    return name.partition("/")[0]
