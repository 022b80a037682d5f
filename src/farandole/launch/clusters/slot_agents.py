"""Agents in slots of a cluster, as seen by the loop of a job.

agents = SlotAgents(slots, ("node1", "node2"))
agents.of("node2").explain()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from farandole.launch.clusters.allocated_slots import AllocatedSlots


@final
class SlotAgent:
    """Agent of one host, which runs as long as the slots there; replaces the ``AgentProcess`` of a launcher."""

    said = ""
    """Last line that it printed: unknown here, the slot reports it if the agent fails."""
    has_ended = True
    """The loop need not wait for it: the slots are waited for when they are released."""
    inherits = True
    """Always true: its workers inherit the variables of the cluster's tasks, not the caller's."""

    def __init__(self, agents: SlotAgents, host: str, bell: int) -> None:
        self._agents = agents
        self.hosts: tuple[str, ...] = (host,)
        self.fds: tuple[int, ...] = (bell,)
        self.code: int | None = None
        """1 if a slot of the host is lost, otherwise ``None``."""
        self.why = ""

    def attend(self) -> None:
        """Check for lost slots."""
        self._agents.look()

    def explain(self) -> str:
        """The reason why a slot is lost."""
        return self.why

    def tell(self, text: bytes) -> bytes:
        """Write nothing; return all of ``text``."""
        return text

    def give_up(self) -> None:
        """Do nothing: a loss ends the run, which releases the slots."""


@final
class SlotAgents:
    """One agent for each host."""

    def __init__(self, slots: AllocatedSlots, hosts: Sequence[str]) -> None:
        self._slots = slots
        self._by_host = {host: SlotAgent(self, host, slots.bell) for host in dict.fromkeys(hosts)}

    def __iter__(self) -> Iterator[SlotAgent]:
        return iter(self._by_host.values())

    def of(self, host: str) -> SlotAgent:
        """The agent of ``host``."""
        return self._by_host[host]

    def look(self) -> None:
        """Mark the agents of hosts with lost slots."""
        for host, why in self._slots.look().items():
            agent = self._by_host[host]
            agent.code, agent.why = 1, agent.why or why
