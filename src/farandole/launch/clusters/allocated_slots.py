"""Slots that a cluster provides for a run, in the requesting process: which are connected, and which are lost.

    with AllocatedSlots(provider, router, ticket, np=4) as slots:
        slots.gather(start_timeout_s=30.0)
        slots.hosts                                 # ("node1", "node1", "node2", "node2"), by rank
        slots.run_agent("node1", config)
        slots.look()                                # {"node2": "slot 3 on node2 is gone: the worker died"}

The loop's thread calls everything, because only it may use the router. Only ``_tick`` runs in its own thread, a clock:
a lost connection is noticed only by sending, so each slot is sent a message every ``LOOK_S``. The clock only wakes the
loop up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, final

import msgspec

from farandole.control.os_text import pack
from farandole.control.slot_messages import HostAgent, SlotHello, SlotOver
from farandole.control.wakeup import Wakeup
from farandole.errors import ControlError
from farandole.launch.agents.agent_config import LaunchedAgentConfig
from farandole.launch.clusters.slot import DEVICES, Ticket
from farandole.launch.clusters.slot_provider import SlotProvider

if TYPE_CHECKING:
    from farandole.control.channel import Router

LOOK_S = 0.5
NEWS_S = 5.0
"""Time after which the user is told how many slots are missing."""

END_S = 10.0
"""Time for tasks to end by themselves before the cluster is asked to kill them."""


@final
class AllocatedSlots:
    """Slots of one run; all are released when the block is left."""

    def __init__(
        self, provider: SlotProvider, router: Router, ticket: Ticket, most: int, fewest: int | None = None
    ) -> None:
        self._provider, self._router, self._ticket = provider, router, ticket
        self._most, self._fewest = most, most if fewest is None else fewest
        self._is_elastic = fewest is not None
        self._held: dict[int, tuple[bytes, SlotHello]] = {}
        self._host_of: dict[int, str] = {}
        self._names: dict[str, str] = {}
        """Names of the hosts, by the cluster's names of their nodes."""
        self._missing: set[int] = set()
        self._closing = threading.Event()
        self._wakeup = Wakeup()
        self._clock = threading.Thread(target=self._tick, name="farandole-slots", daemon=True)

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``look`` is due."""
        return self._wakeup.fd

    def __enter__(self) -> AllocatedSlots:
        self._clock.start()
        try:
            self._provider.lend(range(self._most), self._ticket, together=not self._is_elastic)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- connecting slots ---------------------------------------------------------------------------------------------

    def gather(self, start_timeout_s: float) -> None:
        """Wait until all slots are connected; raises ``ControlError`` if a slot fails, or does not connect in time."""
        begin_s = time.monotonic()
        told_s = begin_s + NEWS_S
        while len(self._held) < self._fewest:
            now = time.monotonic()
            if now >= begin_s + start_timeout_s:
                raise ControlError(self._shortage(start_timeout_s))
            if now >= told_s:
                told_s = begin_s + start_timeout_s
                print(f"farandole: {self._count()}; waiting for the others", file=sys.stderr, flush=True)
            failures = self._failures()
            if len(failures) > self._most - self._fewest or self._provider.is_over:
                slot, why = next(iter(failures.items()))
                raise ControlError(f"{self._provider.name} could not lend slot {slot}: {why}{self._remedy(why)}")
            self._router.wait(min(LOOK_S, begin_s + start_timeout_s - now))
            self._take_in()
        self._host_of = hosts_of({slot: self._placed(hello) for slot, (_, hello) in self._held.items()}, self._names)

    def add_slot(self, identity: bytes, hello: SlotHello) -> bool:
        """Add a slot that connected after ``gather``; False if another task holds it."""
        if hello.slot in self._held:
            return False
        self._held[hello.slot] = identity, hello
        self._host_of |= hosts_of({hello.slot: self._placed(hello)}, self._names)
        return True

    def _placed(self, hello: SlotHello) -> SlotHello:
        """The slot as its host is named by: a slot with GPUs that comes and goes alone is a host of its own."""
        is_alone = self._is_elastic and hello.devices
        return msgspec.structs.replace(hello, node=f"{hello.node} {hello.slot}") if is_alone else hello

    def _take_in(self) -> None:
        while (got := self._router.recv()) is not None:
            identity, message = got
            if isinstance(message, SlotHello) and message.slot not in self._held:
                self._held[message.slot] = identity, message

    def _remedy(self, why: str) -> str:
        absent = f"; install it for the Python of {self._provider.name}'s workers, on every node"
        return absent if "No module named 'farandole'" in why else ""

    def _count(self) -> str:
        return f"{len(self._held)} of {self._fewest} slots of {self._provider.name} have come"

    def _shortage(self, start_timeout_s: float) -> str:
        return (
            f"{self._count()} within {start_timeout_s:g} s: {self._provider.shortage()}. Ask for fewer with np, or "
            "wait longer with start_timeout_s"
        )

    # -- connected slots ----------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of slots by host, in the order of ``hosts``."""
        return Counter(self.hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host of each rank; hosts are in the order of their first slots."""
        names = dict.fromkeys(self._host_of[slot] for slot in sorted(self._host_of))
        return tuple(name for name in names for slot in self._slots_of(name))

    def devices(self, host: str) -> str:
        """GPUs assigned to the slots of ``host``, as in ``CUDA_VISIBLE_DEVICES``; "" for none.

        A worker sees all of them, and uses the one of its local rank, as scripts for Horovod do.
        """
        given = (self._held[slot][1].devices for slot in self._slots_of(host))
        return ",".join(dict.fromkeys(each for text in given for each in text.split(",") if each))

    def run_agent(self, host: str, config: LaunchedAgentConfig, busy: Collection[int] = ()) -> int:
        """Run the agent of ``host`` in its first slot that is not ``busy``; returns its number, -1 if there is none."""
        slot = next((slot for slot in self._slots_of(host) if slot not in busy), -1)
        if slot >= 0:
            own = {DEVICES: devices} if (devices := self.devices(host)) else {}
            command = tuple(self._held[slot][1].command)
            config = msgspec.structs.replace(config, host=host, command=command, variables=own)
            self._router.send(self._held[slot][0], HostAgent(pack(msgspec.json.encode, config, exact=True)))
        return slot

    def look(self) -> Mapping[str, str]:
        """Hosts with lost slots, and why. Never blocks."""
        return {
            self._host_of[slot]: f"slot {slot} of {self._provider.name} on {self._host_of[slot]} is gone: {why}"
            for slot, why in self.lost().items()
            if slot in self._host_of
        }

    def lost(self) -> Mapping[int, str]:
        """Slots that are lost or have failed, and why. Never blocks."""
        self._wakeup.clear()
        failures = dict(self._failures())
        gone = {slot for slot, (identity, _) in self._held.items() if not self._router.reaches(identity)}
        # Not at the first look: the cluster may learn the reason a moment later than this process.
        lost = dict.fromkeys(sorted(gone & self._missing), "the process that held it has ended") | failures
        self._missing = gone
        return lost

    def _failures(self) -> Mapping[int, str]:
        return {0: "the run was told to end"} if self._provider.is_over else self._provider.failures()

    def has(self, slot: int) -> bool:
        """True if the slot has connected."""
        return slot in self._held

    def holds(self, identity: bytes, slot: int) -> bool:
        """True if the task with this ``identity`` holds the slot."""
        return slot in self._held and self._held[slot][0] == identity

    def drop(self, slot: int) -> None:
        """Remove a slot; its task ends if it still runs."""
        if slot in self._held:
            self._router.send(self._held.pop(slot)[0], SlotOver())
        self._host_of.pop(slot, None)

    def request_slots(self, slots: range) -> None:
        """Request further slots with these numbers from the cluster."""
        self._provider.lend(slots, self._ticket, together=False)

    def _slots_of(self, host: str) -> list[int]:
        return [slot for slot in sorted(self._host_of) if self._host_of[slot] == host]

    # -- release ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell the slots that the run is over, and release them. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        told: list[int] = []
        try:
            self._take_in()  # newly connected slots wait for orders, too
            told += [slot for slot, (identity, _) in self._held.items() if self._router.send(identity, SlotOver())]
        finally:
            try:
                self._provider.close(told, time.monotonic() + END_S)
            finally:
                if self._clock.is_alive():
                    self._clock.join()
                self._wakeup.close()

    def _tick(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._wakeup.signal()


def hosts_of(slots: Mapping[int, SlotHello], names: dict[str, str] | None = None) -> dict[int, str]:
    """Host name of each slot: its own, with a number if another node has the same name.

    >>> here, there = (SlotHello(0, "box", node, []) for node in "ab")
    >>> hosts_of({0: here, 1: there, 2: here})
    {0: 'box', 1: 'box~2', 2: 'box'}

    ``names``, by node: names given to earlier slots; new ones are added.
    """
    names = {} if names is None else names
    for _, hello in sorted(slots.items()):
        alike = [name for name in names.values() if name.partition("~")[0] == hello.host]
        names.setdefault(hello.node, f"{hello.host}~{len(alike) + 1}" if alike else hello.host)
    return {slot: names[hello.node] for slot, hello in sorted(slots.items())}
