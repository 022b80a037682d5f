"""The agent of a host: the loop between its controller and its workers, whoever has started these.

    link = connected(config, config.addresses[0])
    Agent(link, workers).serve()

The policy is in ``Workers``: the agent that a launcher sends starts and ends them (``farandole.launch.agents.agent``),
one that a worker has started only watches (``farandole.runtime.selfstart.host_agent``). Heartbeats, requests for stacks
and the relay of the host are the link's.

One thread runs all of it. What is to be watched changes from turn to turn, so ``serve`` compares before each sleep; a
``poll`` goes by the numbers of descriptors, and forgets a file no earlier than that comparison.
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

    ``silence_s`` is how long either may be silent (0: as long as it likes). With ``relay`` the workers are reached
    through the agent, which is to be reached by ``interface`` and at ``ports`` ("": by any). ``name`` is what the agent
    calls itself where its host may have one after another: the controller may still hold the connection of the last.
    ``lent`` are the terms of an agent that comes by itself. It tells ``free_ports`` ports that nobody listens on.
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
    """The workers of a host, and what its agent does with them."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True if nothing is left to be done."""

    @property
    @abstractmethod
    def fds(self) -> Mapping[int, int]:
        """Descriptors that wake the agent, and the events of ``poll`` for which they do."""

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``tick`` has something to do."""
        return None

    @abstractmethod
    def attend(self, ready: set[int]) -> None:
        """Take in what has come by the descriptors that are ``ready``, some of which are perhaps not ours."""

    @abstractmethod
    def obey(self, message: Any) -> None:
        """Do what a message of the controller asks for."""

    @abstractmethod
    def cut_off(self, error: ControlError) -> None:
        """Take in that the controller is gone, or silent for too long."""

    def tick(self, now: float) -> None:  # noqa: B027 (most have no deadlines)
        """Do what is due."""


@final
class Agent:
    """Single-threaded loop over messages of the controller and news of the workers."""

    def __init__(self, link: AgentLink, workers: Workers) -> None:
        self._link, self._workers = link, workers
        self._poll = select.poll()
        self._watched: dict[int, int] = {}

    def serve(self) -> None:
        """Return when nothing is left to be done for the workers."""
        while not self._workers.is_over:
            self._watch()
            ready = {fd for fd, _ in self._poll.poll(self._patience_ms())}
            self._workers.attend(ready)
            self._receive()  # on every turn: heartbeats and the relay have deadlines, too
            self._workers.tick(time.monotonic())

    def _watch(self) -> None:
        """Poll the descriptors that there are now: the link has others after another controller has come."""
        wanted = {**dict.fromkeys(self._link.fds, select.POLLIN), **self._workers.fds}
        for fd in self._watched.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, mask in wanted.items() - self._watched.items():
            self._poll.register(fd, mask)  # which also changes the events of one that is registered
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
    """Link to the controller at ``address``, with the relay of the host if the job needs one. Does not wait."""
    keys, relay = JobKeys.from_secret(config.secret), None
    if config.relay:
        from farandole.runtime.relay.relay import Relay  # small jobs need none

        relay = Relay(keys, config.host, config.silence_s, config.interface, config.ports)
    free = free_ports(config.free_ports, config.ports)
    return AgentLink(address, keys, config.host, config.silence_s, relay, config.name, config.lent, free)
