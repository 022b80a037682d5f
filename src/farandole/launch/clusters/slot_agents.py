"""Agents in slots of a cluster, as seen by the loop of a job.

agents = SlotAgents(slots, ("node1", "node2"))
agents.of("node2").explain()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from farandole.launch.clusters.allocated_slots import AllocatedSlots
from farandole.launch.job.elastic_agents import AbsentAgent


@final
class SlotAgent(AbsentAgent):
    """Agent of one host, which runs as long as the slots there; its code is 1 if one of them is lost."""

    has_ended = True
    """The loop need not wait for it: the slots are waited for when they are released."""
    inherits = True
    """Always true: its workers inherit the variables of the cluster's tasks, not the caller's."""

    def __init__(self, agents: SlotAgents, host: str, bell: int) -> None:
        super().__init__(host)
        self._agents = agents
        self.fds = (bell,)

    def attend(self) -> None:
        """Check for lost slots."""
        self._agents.look()


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
