"""Slots that a cluster lends to a run, as the process sees them that has asked: who has come, and who is gone.

    with AllocatedSlots(provider, router, ticket, np=4) as slots:
        slots.gather(start_timeout_s=30.0)
        slots.hosts                                 # ("node1", "node1", "node2", "node2"), by rank
        slots.run_agent("node1", config)
        slots.look()                                # {"node2": "slot 3 on node2 is gone: the worker died"}

The loop's thread calls everything, as the router has no other. ``_ring`` alone runs in a thread of its own, a clock: a
connection that is gone is only noticed when something is sent, so every ``LOOK_S`` each slot is sent a knock. The clock
touches nothing but the eventfd that it writes to, which is closed when it has ended.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from farandole.control.slot_messages import HostAgent, SlotHello, SlotOver
from farandole.errors import ControlError
from farandole.launch.clusters.slot import Ticket
from farandole.launch.clusters.slot_provider import SlotProvider

if TYPE_CHECKING:
    from farandole.control.channel import Router

LOOK_S = 0.5
NEWS_S = 5.0
"""Time after which people are told for what this waits."""

END_S = 10.0
"""Time for tasks to end that are no longer wanted, before the cluster is asked to kill them."""


@final
class AllocatedSlots:
    """The slots of one run; all given back when the block is left."""

    def __init__(self, provider: SlotProvider, router: Router, ticket: Ticket, np: int) -> None:
        self._provider, self._router, self._ticket, self._np = provider, router, ticket, np
        self._held: dict[int, tuple[bytes, SlotHello]] = {}
        self._host_of: dict[int, str] = {}
        self._missing: set[int] = set()
        self._closing = threading.Event()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Descriptor that is readable when it is time to ``look``."""
        self._clock = threading.Thread(target=self._ring, name="farandole-slots", daemon=True)

    def __enter__(self) -> AllocatedSlots:
        self._clock.start()
        try:
            self._provider.lend(self._np, self._ticket)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- who comes ----------------------------------------------------------------------------------------------------

    def gather(self, start_timeout_s: float) -> None:
        """Wait until all slots have come; raises ``ControlError`` if one fails, or they have not come in time."""
        begin_s = time.monotonic()
        told_s = begin_s + NEWS_S
        while len(self._held) < self._np:
            now = time.monotonic()
            if now >= begin_s + start_timeout_s:
                raise ControlError(self._shortage(start_timeout_s))
            if now >= told_s:
                told_s = begin_s + start_timeout_s
                print(f"farandole: {self._count()}; waiting for the others", file=sys.stderr, flush=True)
            for slot, why in self._failures().items():
                raise ControlError(f"{self._provider.name} could not lend slot {slot}: {why}{self._remedy(why)}")
            self._router.wait(min(LOOK_S, begin_s + start_timeout_s - now))
            self._take_in()
        self._host_of = hosts_of({slot: hello for slot, (_, hello) in self._held.items()})

    def _take_in(self) -> None:
        while (got := self._router.recv()) is not None:
            identity, message = got
            if isinstance(message, SlotHello) and message.slot not in self._held:
                self._held[message.slot] = identity, message

    def _remedy(self, why: str) -> str:
        absent = f"; install it for the Python of {self._provider.name}'s workers, on every node"
        return absent if "No module named 'farandole'" in why else ""

    def _count(self) -> str:
        return f"{len(self._held)} of {self._np} slots of {self._provider.name} have come"

    def _shortage(self, start_timeout_s: float) -> str:
        return (
            f"{self._count()} within {start_timeout_s:g} s: {self._provider.shortage()}. Ask for fewer with np, or "
            "wait longer with start_timeout_s"
        )

    # -- who is there -------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank: the hosts in the order of their first slots."""
        names = dict.fromkeys(self._host_of[slot] for slot in sorted(self._host_of))
        return tuple(name for name in names for slot in self._slots_of(name))

    def command(self, host: str) -> list[str]:
        """The command that starts a worker on ``host``."""
        return self._held[self._slots_of(host)[0]][1].command

    def devices(self, host: str) -> str:
        """The GPUs that the slots of ``host`` were given, as in ``CUDA_VISIBLE_DEVICES``; "" for none.

        A worker sees all of them, and takes the one of its local rank, as scripts for Horovod do.
        """
        given = (self._held[slot][1].devices for slot in self._slots_of(host))
        return ",".join(dict.fromkeys(each for text in given for each in text.split(",") if each))

    def run_agent(self, host: str, config: bytes) -> None:
        """Have the first slot of ``host`` run the agent there."""
        self._router.send(self._held[self._slots_of(host)[0]][0], HostAgent(config))

    def look(self) -> Mapping[str, str]:
        """Hosts of which slots are gone, and why. Never waits."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        failures = dict(self._failures())
        gone = {slot for slot, (identity, _) in self._held.items() if not self._router.reaches(identity)}
        # Not at the first look: the cluster may learn a moment later than we why its worker is gone.
        lost = dict.fromkeys(sorted(gone & self._missing), "the process that held it has ended") | failures
        self._missing = gone
        held = {slot: why for slot, why in lost.items() if slot in self._host_of}
        return {
            self._host_of[slot]: f"slot {slot} of {self._provider.name} on {self._host_of[slot]} is gone: {why}"
            for slot, why in held.items()
        }

    def _failures(self) -> Mapping[int, str]:
        return {0: "the run was told to end"} if self._provider.is_over else self._provider.failures()

    def _slots_of(self, host: str) -> list[int]:
        return [slot for slot in sorted(self._host_of) if self._host_of[slot] == host]

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell the slots that the run is over, and give them back. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        told: list[int] = []
        try:
            self._take_in()  # those that have just come wait for orders, too
            told += [slot for slot, (identity, _) in self._held.items() if self._router.send(identity, SlotOver())]
        finally:
            try:
                self._provider.close(told, time.monotonic() + END_S)
            finally:
                if self._clock.is_alive():
                    self._clock.join()
                os.close(self.bell)

    def _ring(self) -> None:
        while not self._closing.wait(LOOK_S):
            os.eventfd_write(self.bell, 1)


def hosts_of(slots: Mapping[int, SlotHello]) -> dict[int, str]:
    """The name of the host of each slot: its own, with a number where another one has the same. Pure.

    >>> here, there = (SlotHello(0, "box", node, []) for node in "ab")
    >>> hosts_of({0: here, 1: there, 2: here})
    {0: 'box', 1: 'box~2', 2: 'box'}
    """
    names: dict[str, str] = {}
    for _, hello in sorted(slots.items()):
        alike = [name for name in names.values() if name.partition("~")[0] == hello.host]
        names.setdefault(hello.node, f"{hello.host}~{len(alike) + 1}" if alike else hello.host)
    return {slot: names[hello.node] for slot, hello in sorted(slots.items())}
