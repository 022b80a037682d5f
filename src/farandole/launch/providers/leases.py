"""Provider of processes on nodes that jobs of a scheduler lend, and take back.

    provider = LeaseProvider(folder / "pool", output, own_path(), settings)
    # then, in any job of Slurm, and by hand: farandole join FOLDER/pool

The provider publishes its address in that folder, as the leader of a training run does, for the same command. If the
scheduler takes a node back, it sends SIGTERM, the node is leaving, and its scheduler job ends when it is released.
Every lease ends with the provider.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AgentHello, StopWorkers
from farandole.launch.hosts.run_folder import RunContact, RunFolder
from farandole.launch.providers.hosts import AgentProvider
from farandole.launch.providers.provider import LEAVE_S, HostLeaving
from farandole.runtime.coordination.downlink import Send
from farandole.settings import Settings


@final
class LeaseProvider(AgentProvider):
    """Processes on leased nodes, whose agents find this process by ``folder``."""

    lends = True

    def __init__(self, folder: Path, output: Path, python_path: Sequence[str], settings: Settings) -> None:
        super().__init__({}, output, python_path, settings)
        self._folder = RunFolder.create(folder)
        self._known: set[str] = set()
        """All hosts that were ever lent. None is lent twice: its job ends, and the next job's host has another name."""

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        super().open(contact, send)
        told = self._settings
        self._folder.publish(
            RunContact(
                list(contact.addresses), contact.key, told.host_timeout_s, told.start_timeout_s, told.network_interface
            )
        )
        sys.stderr.write(f"farandole: nodes join this search by: farandole join {self._folder.path}\n")

    def close(self) -> None:
        """See ``Provider``. The leases end with their agents."""
        self._folder.withdraw(0)
        for host in self.slots:
            self._send_to_agent(host, StopWorkers(LEAVE_S))
        self.slots = {}

    def _refusal(self, hello: AgentHello) -> str:
        if hello.lent is None or hello.lent.host != hello.host:
            return "nobody has sent for it; nodes join by: farandole join"
        if hello.host in self._known:
            return "it has been here before, and was given up"
        if hello.lent.slots < 1:
            return f"it lends {hello.lent.slots} workers"
        self._known.add(hello.host)
        self.slots[hello.host] = hello.lent.slots
        return ""

    def _on_leaving(self, host: str) -> None:
        self._news.append(HostLeaving(host))
