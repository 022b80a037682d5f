"""Agent of a host: event loop between the controller and the workers of the host.

    link = connected(config, config.addresses[0])
    Agent(link, workers).serve()

``Workers`` is the policy: an agent of a launcher starts and ends workers (``farandole.launch.agents.agent``); an agent
that a worker started only watches them (``farandole.runtime.selfstart.host_agent``). The link does heartbeats, requests
for stacks, and the relay of the host.

One thread runs all of it. The set of watched descriptors changes from turn to turn, so ``serve`` updates it before each
sleep; a ``poll`` object works with descriptor numbers, and drops a closed one only in that update.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

import msgspec

from farandole.control.addresses import free_ports
from farandole.control.agent_messages import LeaseOffer
from farandole.control.keys import JobKeys
from farandole.control.sockets import LONGEST_WAIT_S
from farandole.errors import ControlError
from farandole.runtime.relay.agent_link import AgentLink


class AgentConfig(msgspec.Struct, frozen=True):
    """Addresses of the controller, the job's secret, and the name of the agent's host.

    ``silence_s``: longest silence of either side (0: no limit). ``relay``: workers are reached through the agent, which
    listens on ``interface`` and at ``ports`` ("": any). ``name``: identity of the agent on a host that may have several
    in succession, because the controller may still hold the connection of the last one. ``lent``: the offer of the
    agent of a lease. ``free_ports``: how many free ports the agent reports.
    """

    addresses: list[str]
    secret: str
    host: str = ""
    silence_s: float = 0.0
    relay: bool = False
    interface: str = ""
    ports: str = ""
    name: str = ""
    lent: LeaseOffer | None = None
    free_ports: int = 1


class Workers(ABC):
    """Workers of a host: policy of its agent."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True if the agent may exit."""

    @property
    @abstractmethod
    def fds(self) -> Mapping[int, int]:
        """Descriptors that wake the agent, with their ``poll`` events."""

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``tick`` has something to do."""
        return None

    @abstractmethod
    def attend(self, ready: set[int]) -> None:
        """Handle the descriptors that are ``ready``; some may belong to the link."""

    @abstractmethod
    def obey(self, message: Any) -> None:
        """Carry out a message of the controller."""

    @abstractmethod
    def cut_off(self, error: ControlError) -> None:
        """Handle the loss of the controller, or its silence for too long."""

    def tick(self, now: float) -> None:  # noqa: B027 (most have no deadlines)
        """Do what is due."""


@final
class Agent:
    """Single-threaded loop over messages of the controller and events of the workers."""

    def __init__(self, link: AgentLink, workers: Workers) -> None:
        self._link, self._workers = link, workers
        self._poll = select.poll()
        self._watched: dict[int, int] = {}

    def serve(self) -> None:
        """Run the loop until ``Workers.is_over``."""
        while not self._workers.is_over:
            self._watch()
            ready = {fd for fd, _ in self._poll.poll(self._patience_ms())}
            self._workers.attend(ready)
            self._receive()  # on every turn: heartbeats and the relay have deadlines, too
            self._workers.tick(time.monotonic())

    def _watch(self) -> None:
        """Update the polled descriptors: the link has new ones after a change of controller."""
        wanted = {**dict.fromkeys(self._link.fds, select.POLLIN), **self._workers.fds}
        for fd in self._watched.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, mask in wanted.items() - self._watched.items():
            self._poll.register(fd, mask)  # also changes the events of a registered one
        self._watched = wanted

    def _patience_ms(self) -> float | None:
        moments = (self._link.deadline_s, self._workers.deadline_s)
        deadlines = [moment for moment in moments if moment is not None]
        return max(0.0, min(min(deadlines) - time.monotonic(), LONGEST_WAIT_S)) * 1000 if deadlines else None

    def _receive(self) -> None:
        try:
            for message in self._link.receive():
                self._workers.obey(message)
            self._link.beat()
        except ControlError as error:
            self._workers.cut_off(error)


def connected(config: AgentConfig, address: str) -> AgentLink:
    """Link to the controller at ``address``, with a relay if the job needs one. Does not block."""
    keys = JobKeys.from_secret(config.secret)
    if config.relay:
        from farandole.runtime.relay.relay import Relay, RelayedAgentLink  # small jobs need none

        relay = Relay(keys, config.host, config.silence_s, config.interface, config.ports)
        free = free_ports(config.free_ports, config.ports)  # after the relay has taken its own
        return RelayedAgentLink(relay, address, keys, config.host, config.silence_s, free)
    free = free_ports(config.free_ports, config.ports)
    return AgentLink(address, keys, config.host, config.silence_s, config.name, config.lent, free)
