"""Elastic jobs in slots of a cluster: a function on workers that Ray, Dask or Spark has room for now.

    run_elastic_on(RayLender(bundle), job, None, task)      # job.settings has min_np and max_np

The job is that of ``elastic_function``, with its launcher as a child. This process requests slots from the cluster, and
writes their hosts to a file, which the launcher reads like any host file. To start an agent the launcher runs a command
(``slot_reach``) that connects to this process, which makes a slot of that host run the agent. A lost slot is requested
again: the cluster may have room for it on another host, or later.

One thread runs all of it, the caller's, in the loop of ``run_elastic``.

Starter of an agent in a slot of a cluster, as a child of the launcher of an elastic job; it replaces ``ssh``.

    python -m farandole.launch.clusters.elastic_slots node1    # the agent's config, a line of JSON, on standard input

The program sends the config to the process that requested slots from the cluster (``elastic_slots``), which runs the
agent in a slot of ``node1``. It exits with 0 when its input closes or it gets SIGTERM: the agent is no longer needed;
and with 1 when the agent has exited, or no address answers, with the reason on standard error. It connects to
``FARANDOLE_CALLER``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.cluster.contact import Contact
from farandole.cluster.environment import CALLER
from farandole.control import process
from farandole.control.channel import Dealer, Router
from farandole.control.dial import first_answering
from farandole.control.entry import entry_command
from farandole.control.keys import JobKeys
from farandole.control.os_text import unpack
from farandole.control.slot_messages import AgentOver, EndAgent, RunAgent, SlotHello, SlotOver
from farandole.errors import ControlError
from farandole.events import logger
from farandole.launch.agents.agent_config import DIAL_SHARE, LaunchedAgentConfig
from farandole.launch.agents.agents import AgentStarter, StarterGroup
from farandole.launch.agents.ssh import Ssh
from farandole.launch.clusters.allocated_slots import AllocatedSlots
from farandole.launch.clusters.slot import Ticket
from farandole.launch.clusters.slot_provider import SlotProvider
from farandole.launch.function.elastic_function import JobRequest, run_elastic
from farandole.launch.hosts.elastic_job import limits
from farandole.launch.hosts.plan import Job
from farandole.settings import Settings

MODULE = "farandole.launch.clusters.elastic_slots"
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


ASK_AGAIN_S = 2.0
"""Pause before a lost slot is requested again; doubled after each slot that fails before it connects."""

LONGEST_S = 60.0


def run_elastic_on(provider: SlotProvider, job: Job, np: int | None, task: bytes) -> list[Any]:
    """Make the call on ``min_np`` to ``max_np`` workers; return the return values of those that finished.

    Raises the errors of ``farandole.run``, and ``ControlError`` if fewer than ``min_np`` slots connect in time.
    """
    settings = limits(job.settings, np)
    most = settings.max_np or max(settings.min_np, np or 1)
    with tempfile.TemporaryDirectory(prefix="farandole-slots-") as folder:
        hostfile = Path(folder) / "hosts"
        request = JobRequest(job, np, "", str(hostfile), Ssh(), starter=SlotStarter())

        @contextlib.contextmanager
        def slots(router: Router, addresses: list[str], secret: str) -> Iterator[ElasticSlots]:
            dial_s = DIAL_SHARE * settings.start_timeout_s
            ticket = Ticket(tuple(addresses), dial_s, settings.host_timeout_s, secret)
            with AllocatedSlots(provider, router, ticket, most, settings.min_np) as allocated:
                allocated.gather(settings.start_timeout_s)
                yield ElasticSlots(allocated, router, hostfile, most)

        return run_elastic(request, task, slots=slots)


@final
class ElasticSlots:
    """Slots of one job, ``most`` of them; their hosts are in ``hostfile``."""

    def __init__(self, slots: AllocatedSlots, router: Router, hostfile: Path, most: int) -> None:
        self._slots, self._router, self._hostfile = slots, router, hostfile
        self._asked, self._next = set(range(most)), most
        """Slots requested and not lost, and the number of the next one."""
        self._most, self._agents = most, dict[bytes, tuple[str, int]]()
        self._ask_s, self._pause_s = 0.0, ASK_AGAIN_S
        self._written = ""
        self._write()

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``turn`` has something to do."""
        return self._slots.bell

    def handle_slot_message(self, identity: bytes, message: Any) -> None:
        """Handle a message of a slot, or of the command that starts an agent."""
        if isinstance(message, SlotHello):
            if message.slot in self._asked and self._slots.add_slot(identity, message):
                self._pause_s = ASK_AGAIN_S
                self._write()
            else:
                self._router.send(identity, SlotOver())  # the cluster has run a lost task again
        elif isinstance(message, RunAgent):
            self._run_agent(identity, message)
        elif isinstance(message, AgentOver):  # of a slot, which stays
            for start in [start for start, (_, slot) in self._agents.items() if self._slots.holds(identity, slot)]:
                del self._agents[start]
                self._router.send(start, message)
        elif isinstance(message, EndAgent) and identity in self._agents:
            self._drop(self._agents.pop(identity)[1], "its agent was given up")

    def turn(self) -> None:
        """Drop the slots that are gone, and ask for others in their place."""
        gone = {slot: why for slot, why in self._slots.lost().items() if slot in self._asked}
        now = time.monotonic()
        if gone:
            has_failed = any(not self._slots.has(slot) for slot in gone)
            self._pause_s = min(2 * self._pause_s, LONGEST_S) if has_failed else ASK_AGAIN_S
            self._ask_s = now + self._pause_s
        for slot, why in gone.items():
            logger.warning("slot %d is gone: %s", slot, why)
            self._drop(slot, why)
        for start in [start for start in self._agents if not self._router.reaches(start)]:
            self._drop(self._agents.pop(start)[1], "the launcher has given its agent up")
        if len(self._asked) < self._most and now >= self._ask_s:
            more = range(self._next, self._next + self._most - len(self._asked))
            self._next = more.stop
            self._asked |= set(more)
            self._slots.request_slots(more)

    def _run_agent(self, identity: bytes, message: RunAgent) -> None:
        config = unpack(msgspec.json.Decoder(LaunchedAgentConfig).decode, message.config)
        busy = {slot for _, slot in self._agents.values()}
        slot = self._slots.run_agent(message.host, config, busy)
        if slot < 0:
            self._router.send(identity, AgentOver(f"no slot of host {message.host} is free to run its agent"))
        else:
            self._agents[identity] = message.host, slot

    def _drop(self, slot: int, why: str) -> None:
        self._asked.discard(slot)
        self._slots.drop(slot)
        for identity, (host, own) in list(self._agents.items()):
            if own == slot:
                del self._agents[identity]
                self._router.send(identity, AgentOver(f"slot {slot} on {host} is gone: {why}"))
        self._write()

    def _write(self) -> None:
        """Write the host file under another name and rename it, because the launcher may read at any time."""
        text = "".join(f"{host} slots={count}\n" for host, count in self._slots.counts.items())
        if text != self._written or not self._hostfile.exists():
            half = self._hostfile.with_suffix(".new")
            half.write_text(text)
            os.replace(half, self._hostfile)
            self._written = text
