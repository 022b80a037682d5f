"""Starter of an agent in a slot of a cluster, as a child of the launcher of an elastic job; it replaces ``ssh``.

    python -m farandole.launch.clusters.slot_reach node1    # the agent's config, a line of JSON, on standard input

The program sends the config to the process that requested slots from the cluster (``elastic_slots``), which runs the
agent in a slot of ``node1``. It exits with 0 when its input closes or it gets SIGTERM: the agent is no longer needed;
and with 1 when the agent has exited, or no address answers, with the reason on standard error. It connects to
``FARANDOLE_CALLER``.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from farandole.cluster.contact import Contact
from farandole.cluster.environment import CALLER
from farandole.control import process
from farandole.control.channel import Dealer
from farandole.control.dial import first_answering
from farandole.control.entry import entry_command
from farandole.control.keys import JobKeys
from farandole.control.slot_messages import AgentOver, EndAgent, RunAgent
from farandole.errors import ControlError
from farandole.launch.agents.agents import AgentStarter, StarterGroup
from farandole.settings import Settings

MODULE = "farandole.launch.clusters.slot_reach"
STDIN = 0
DIAL_S = 30.0


@final
@dataclass(frozen=True)
class SlotStarter(AgentStarter):
    """Starter of agents in slots of a cluster. Their workers inherit variables and folder of the cluster's tasks."""

    is_foreign = True

    def groups(self, hosts: Sequence[str], here: str) -> list[StarterGroup]:
        """One group for each host; ``here`` is no name known to the cluster."""
        return [StarterGroup(self, (host,)) for host in dict.fromkeys(hosts)]

    def command(self, hosts: Sequence[str], settings: Settings, module: str = MODULE) -> list[str]:
        """Command of this program, for one host."""
        (host,) = hosts
        return [*entry_command(MODULE), host]

    def explain(self, hosts: Sequence[str], code: int, said: str) -> str:
        """Last line that the program printed."""
        lines = [line.removeprefix("farandole: ") for line in said.splitlines() if line.strip()]
        return lines[-1] if lines else f"the agent in a slot of {hosts[0]} has ended"


def reach(host: str, contact: Contact) -> str:
    """Run an agent on ``host`` until standard input closes; return the reason if the agent exited before, else ""."""
    keys = JobKeys.from_secret(contact.key)
    config = sys.stdin.buffer.readline()
    if not config:
        return ""  # the launcher has exited
    address = first_answering(contact.addresses, keys, DIAL_S, STDIN)
    with Dealer(address, b"reach-" + secrets.token_hex(8).encode(), keys, DIAL_S) as dealer:
        dealer.send(RunAgent(host, config.strip()))
        with process.signals_as_bytes((signal.SIGTERM,)) as told:  # by which the launcher gives an agent up
            poll = select.poll()
            for fd in (STDIN, told, *dealer.fds):
                poll.register(fd, select.POLLIN)
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if told in ready or (STDIN in ready and not os.read(STDIN, 2**12)):
                    dealer.send(EndAgent())
                    return ""
                while (message := dealer.recv(0.0)) is not None:
                    if isinstance(message, AgentOver):
                        return message.reason


def main() -> None:
    """Entry of the program."""
    try:
        reason = reach(sys.argv[1], Contact.decode(os.environ[CALLER].encode()))
    except ControlError as error:
        reason = str(error)
    if reason:
        sys.exit(f"farandole: {reason}")


if __name__ == "__main__":
    main()
