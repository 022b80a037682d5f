"""Agents that run in slots, as the loop of a job sees them.

agents = SlotAgents(slots, ("node1", "node2"))
agents.of("node2").explain()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from farandole.launch.clusters.allocated_slots import AllocatedSlots


@final
class SlotAgent:
    """The agent of one host, which lives as long as the slots there: what an ``AgentProcess`` is to a launcher."""

    said = ""
    """The last line that it wrote: its slot tells, if it fails."""
    has_ended = True
    """Nothing need be waited for: the slots are, when they are given back."""
    inherits = True
    """True if its workers get the variables of the cluster's tasks, and not the caller's."""

    def __init__(self, agents: SlotAgents, host: str, bell: int) -> None:
        self._agents = agents
        self.hosts: tuple[str, ...] = (host,)
        self.fds: tuple[int, ...] = (bell,)
        self.code: int | None = None
        """1 if a slot of the host is gone; ``None`` else."""
        self.why = ""

    def attend(self) -> None:
        """Look whether the slots are there."""
        self._agents.look()

    def explain(self) -> str:
        """The reason why a slot is gone."""
        return self.why

    def tell(self, text: bytes) -> bytes:
        """Write nothing; returns what is left, which is all."""
        return text

    def kill(self) -> None:
        """Do nothing: the run is over by a loss, and then the slots are given back."""


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
        """Note the hosts of which slots are gone."""
        for host, why in self._slots.look().items():
            agent = self._by_host[host]
            agent.code, agent.why = 1, agent.why or why
