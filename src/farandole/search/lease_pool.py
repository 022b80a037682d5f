"""Pool of warm workers on nodes that jobs of a scheduler lend, and take back, while a search runs.

    pool = LeasePool(folder / "pool", output, own_path(), settings)
    # then, in any job of Slurm, and by hand: farandole join FOLDER/pool

The search publishes its address in that folder, as the leader of a training run does, for the same ``farandole join``.
A search begins without workers, uses nodes that join, and waits while there are none. If the scheduler takes a node
back, it sends SIGTERM: the workers of the node leave their trials at the next commit, and the scheduler job ends. Every
lease ends with the search.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import final

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AgentHello, StopWorkers
from farandole.launch.hosts.run_folder import RunContact, RunFolder
from farandole.search.agent_pool import AgentPool
from farandole.search.pools import LEAVE_S, ProcessEnded
from farandole.search.worker import LENT
from farandole.settings import Settings

NAME = "pool"
"""Name of the folder, inside the search's folder, in which joining nodes find the search."""


@final
class LeasePool(AgentPool):
    """Pool of workers on leased nodes, which find the search by ``folder``."""

    may_grow = True
    words = (LENT,)

    def __init__(self, folder: Path, output: Path, python_path: Sequence[str], settings: Settings) -> None:
        super().__init__({}, output, python_path, settings)
        self._folder = RunFolder.create(folder)
        self._known: set[str] = set()
        """All hosts that were ever lent. None is lent twice: its job ends, and the next job's host has another name."""

    def start(self, contact: Contact) -> None:
        """See ``Pool``."""
        self._contact = contact
        told = self._settings
        self._folder.publish(
            RunContact(
                list(contact.addresses), contact.key, told.host_timeout_s, told.start_timeout_s, told.network_interface
            )
        )
        sys.stderr.write(f"farandole: nodes join this search by: farandole join {self._folder.path}\n")

    @property
    def fds(self) -> Collection[int]:
        """See ``Pool``; none, because agents use the socket of the search."""
        return ()

    def attend(self, ready: Collection[int]) -> list[ProcessEnded]:
        """See ``Pool``."""
        return []

    def close(self) -> None:
        """See ``Pool``. The leases end with their agents."""
        self._folder.withdraw(0)
        for host in [*self._slots, *self._leaving]:
            self._tell(host, StopWorkers(LEAVE_S))
        self._slots, self._leaving = {}, set()

    def _refusal(self, hello: AgentHello) -> str:
        if hello.lent is None or hello.lent.host != hello.host:
            return "nobody has sent for it; nodes join by: farandole join"
        if hello.host in self._known:
            return "it has been here before, and was given up"
        if hello.lent.slots < 1:
            return f"it lends {hello.lent.slots} workers"
        self._known.add(hello.host)
        self._slots[hello.host] = hello.lent.slots
        return ""

    def _leaves(self, host: str) -> list[ProcessEnded]:
        if self._slots.pop(host, None) is not None:
            self._leaving.add(host)
        return []

    def _lost(self, host: str, reason: str) -> None:
        """Go on, because other hosts may join."""
