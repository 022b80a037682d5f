"""Elastic jobs in slots of a cluster: a function on workers that Ray, Dask or Spark has room for now.

    run_elastic_on(RayLender(bundle), job, None, task)      # job.settings has min_np and max_np

The job is that of ``elastic_function``, with its launcher as a child. This process requests slots from the cluster, and
writes their hosts to a file, which the launcher reads like any host file. To start an agent the launcher runs a command
(``slot_reach``) that connects to this process, which makes a slot of that host run the agent. A lost slot is requested
again: the cluster may have room for it on another host, or later.

One thread runs all of it, the caller's, in the loop of ``run_elastic``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.control.channel import Router
from farandole.control.os_text import unpack
from farandole.control.slot_messages import AgentOver, EndAgent, RunAgent, SlotHello, SlotOver
from farandole.events import logger
from farandole.launch.agents.agent_config import DIAL_SHARE, LaunchedAgentConfig
from farandole.launch.agents.ssh import Ssh
from farandole.launch.clusters.allocated_slots import AllocatedSlots
from farandole.launch.clusters.slot import Ticket
from farandole.launch.clusters.slot_provider import SlotProvider
from farandole.launch.clusters.slot_reach import SlotStarter
from farandole.launch.function.elastic_function import JobRequest, run_elastic
from farandole.launch.hosts.elastic_job import limits
from farandole.launch.hosts.plan import Job

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
        return self._slots.fd

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
