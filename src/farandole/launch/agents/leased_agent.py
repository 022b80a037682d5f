"""Workers of the agent of a lease, which no launcher has started: their leader runs elsewhere, and may be replaced.

    serve(config, address, LeasedWorkers)
    serve(config, address, partial(AdoptableWorkers, lookup))      # they outlive their leader

The agent gets no standard input. On SIGTERM, with which a scheduler takes the host back, it informs the leader, which
makes the workers leave at their next commit.
"""

from __future__ import annotations

import select
from typing import final

from farandole.control.agent_messages import Leaving
from farandole.errors import ControlError
from farandole.launch.agents.agent import LaunchedWorkers
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.agents.controller_lookup import ControllerLookup
from farandole.runtime.relay.agent_link import AgentLink


class LeasedWorkers(LaunchedWorkers):
    """Workers of a lease; they exit with their leader."""

    def __init__(self, config: LaunchedAgentConfig, address: str, signals: int) -> None:
        super().__init__(config, address, signals)
        self._launcher_lives, self._leaving = False, False

    def _on_notice(self) -> None:
        if not self._dismissed:  # else the workers already end, within the grace given by their leader
            self._leaving = True
            self._post(Leaving())

    def _renew(self, link: AgentLink, address: str = "") -> None:
        super()._renew(link, address)
        if self._leaving:
            self._post(Leaving())  # the previous controller may not have recorded it


@final
class AdoptableWorkers(LeasedWorkers):
    """Workers of a lease that wait for the next leader of their run, by ``lookup``, and are adopted by it."""

    def __init__(self, lookup: ControllerLookup, config: LaunchedAgentConfig, address: str, signals: int) -> None:
        super().__init__(config, address, signals)
        self._lookup, self._patience_s, self._is_elsewhere = lookup, lookup.patience_s, True

    @property
    def fds(self) -> dict[int, int]:
        """See ``LaunchedWorkers``; also the descriptor of the lookup."""
        return {**super().fds, self._lookup.fd: select.POLLIN}

    @property
    def _worker_address(self) -> str:
        return self._lookup.address

    def tick(self, now: float) -> None:
        """See ``Workers``; also connect to the next leader, and redirect the workers to it."""
        super().tick(now)
        if self._link is None:
            return
        link = self._link
        if address := self._lookup.found():
            self._renew(link, address)
        elif self._lookup.over:
            self._give_up(ControlError(self._lookup.over))
        self._lookup.follow("" if self._link is None else link.address)
