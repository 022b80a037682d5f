"""The agents of an elastic job as its controller sees them: children of the launcher, at the other end of a pipe.

agents = FarAgents(line, live=["a/1"], inherits=elastic.inherits)
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
    """The child that starts, or is, the agent of one host: what an ``AgentProcess`` is in the launcher itself."""

    fds: tuple[int, ...] = ()

    def __init__(self, line: LauncherPipe, name: str, *, inherits: bool) -> None:
        self.name = name
        self.hosts: tuple[str, ...] = (host_of(name),)
        self.code: int | None = None
        """Its exit status, or minus the signal that killed it; ``None`` while it runs."""
        self.said = ""
        """The last line that it wrote."""
        self.inherits = inherits
        """True if its agents get the launcher's variables by themselves."""
        self.why = ""
        self._line = line

    @property
    def has_ended(self) -> bool:
        """True if nothing need be waited for."""
        return self.code is not None or not self.hosts

    def attend(self) -> None:
        """Do nothing: the launcher attends to the child."""

    def explain(self) -> str:
        """The reason why it has ended, in the words of the launcher."""
        return self.why

    def tell(self, text: bytes) -> bytes:
        """Write nothing: these agents print no more than their workers' lines. Returns what is left, which is all."""
        return text

    def give_up(self) -> None:
        """End it as its host is lost; what it says counts no more, and others may serve the host."""
        if self.hosts:
            self._line.send(AbandonHost(self.name))
        self.hosts = ()


@final
class LauncherAgents:
    """One agent for each host that the controller has sent for; ``inherits`` is asked with the host."""

    def __init__(self, line: LauncherPipe, live: Iterable[str], *, inherits: Callable[[str], bool]) -> None:
        self._line, self._inherits = line, inherits
        self._by_host = {host_of(name): LauncherAgent(line, name, inherits=inherits(host_of(name))) for name in live}

    def __iter__(self) -> Iterator[LauncherAgent]:
        return iter(tuple(self._by_host.values()))

    def of(self, host: str) -> LauncherAgent:
        """The agent of ``host``."""
        return self._by_host[host]

    def add(self, host: str, name: str) -> None:
        """Have the launcher start one, which is to call itself ``name``."""
        self._by_host[host] = LauncherAgent(self._line, name, inherits=self._inherits(host))
        self._line.send(StartAgent(host, name))

    def admit(self, host: str) -> None:
        """Take in one that has come by itself: nobody has started it, and it gets none of the launcher's variables."""
        self._by_host[host] = LauncherAgent(self._line, host, inherits=False)

    def forget(self, host: str) -> None:
        """Wait no more for one that has come by itself, whose end nobody else sees."""
        self._by_host.pop(host, None)

    def take(self, message: AgentSaid | AgentEnded) -> LauncherAgent | None:
        """Take in news from the launcher; returns the agent that they concern, unless that was given up."""
        agent = self._by_host.get(host_of(message.name))
        # News may cross with an order: the agent was given up meanwhile, or its host has another one.
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
