"""Fleet: which processes live, and which must start or be killed. Pure: without I/O and clocks.

    >>> fleet = Fleet({"a": 2})
    >>> fleet.on(HostOffered("a", 2))
    []
    >>> fleet.take_orders()
    [StartProcesses(host='a', worker_ids=(0, 1))]
    >>> worker = fleet.connect(0, b"pool-x", pid=4711)
    >>> fleet.on(WorkerExited(0, -9)) == [worker], worker.state, fleet.take_orders()
    (True, <ProcessState.EXITED: 6>, [StartProcesses(host='a', worker_ids=(2,))])

Every offered slot gets a process, and another one when that exits. Input are the events of a ``Provider``, and who
connects; output are orders to it.

    ORDERED ── Started ──> STARTED ── connect ──> CONNECTED ── kill ──> KILLED ── spare ──> SPARED
       └────────┴─────────────┴───────────────────────┴───────────────────┴──────────────────┴── WorkerExited ──> EXITED

A message may be lost while a host is cut off. Then the host is offered again with all that runs there, and a process
that the fleet has given up, but runs, is killed and not replaced.
"""

from __future__ import annotations

import enum
import math
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from farandole.control.agent_messages import Started
from farandole.control.exits import HostLost, WorkerExited
from farandole.launch.providers.provider import HostLeaving, HostOffered, ProviderEvent

MOST_EARLY = 5
"""Number of processes in a row that may exit before they have connected; more, if there are more slots."""


@final
class ProcessState(enum.Enum):
    """State of a process of a fleet.

    A killed process may still send messages: a kill may be only an interrupt. A spared one has heeded that, and exits
    by itself.
    """

    ORDERED = 1
    STARTED = 2
    CONNECTED = 3
    KILLED = 4
    SPARED = 5
    EXITED = 6


@final
@dataclass(eq=False)
class FleetWorker:
    """Process of a fleet; ``member_id``: its worker id in the job that it works for, -1 if it is free."""

    worker_id: int
    host: str
    pid: int = -1
    state: ProcessState = ProcessState.ORDERED
    identity: bytes = b""
    member_id: int = -1
    force_s: float = math.inf
    """Time at which it is killed, if it has not heeded an interrupt."""
    exited: WorkerExited | None = None
    """Its exit, or the reason why it was given up."""


@final
class StartProcesses(NamedTuple):
    """Order to start processes with these worker ids."""

    host: str
    worker_ids: tuple[int, ...]


@final
class KillProcess(NamedTuple):
    """Order to send a process a signal, SIGINT or SIGKILL."""

    host: str
    worker_id: int
    number: int


FleetOrder: TypeAlias = StartProcesses | KillProcess


@final
class Fleet:
    """Processes on hosts that a provider offers. ``slots``: those of hosts that are expected, and not offered yet.

    ``heed_s``: time between an interrupt and a kill, 0: no interrupt. Iteration is over the living processes.
    """

    def __init__(self, slots: Mapping[str, int], heed_s: float = 0.0) -> None:
        self.slots = dict(slots)
        """Slots by host, without hosts that are lost or leaving."""
        self.leaving: set[str] = set()
        """Hosts whose workers must leave at their next commit; nothing starts there."""
        self.may_grow = not slots
        """True if a fleet without slots is no fault, because hosts may be offered."""
        self.given_up: WorkerExited | None = None
        """Exit of the last of too many processes in a row that exited before they connected; else ``None``."""
        self._heed_s = heed_s
        self._living: dict[int, FleetWorker] = {}
        self._past: dict[int, FleetWorker] = {}
        self._orders: list[FleetOrder] = []
        self._next = self._early = 0

    def __iter__(self) -> Iterator[FleetWorker]:
        return iter(list(self._living.values()))

    def take_orders(self) -> list[FleetOrder]:
        """Orders since the last call, to be carried out in this order."""
        orders, self._orders = self._orders, []
        return orders

    # -- events -------------------------------------------------------------------------------------------------------

    def on(self, event: ProviderEvent) -> list[FleetWorker]:
        """Handle an event; returns the processes that have exited by it, each of them once."""
        if isinstance(event, HostOffered):
            return self._on_offered(event)
        if isinstance(event, HostLost):
            return self._on_lost(event)
        if isinstance(event, WorkerExited):
            return self._on_exited(event)
        if isinstance(event, HostLeaving):
            if self.slots.pop(event.host, None) is not None:
                self.leaving.add(event.host)
                self._withdraw_starts(event.host)
        elif worker := self._living.get(event.worker_id) or self._past.get(event.worker_id):
            self._on_started(worker, event.pid)
        return []

    def connect(self, worker_id: int, identity: bytes, pid: int) -> FleetWorker | None:
        """Note that a process has connected; ``None`` if it has exited since, was given up, or is on a leaving host."""
        worker = self._living.get(worker_id)
        if worker is None or worker.host not in self.slots or worker.state.value >= ProcessState.CONNECTED.value:
            return None
        self._early = 0
        worker.state, worker.identity, worker.pid = ProcessState.CONNECTED, identity, pid
        return worker

    def kill(self, worker: FleetWorker, now: float) -> None:
        """Kill a process, or interrupt it first; its exit is an event as any other."""
        if worker.state.value < ProcessState.KILLED.value:
            worker.state = ProcessState.KILLED
            worker.force_s = now + self._heed_s if self._heed_s else math.inf
            self._order_kill(worker, signal.SIGINT if self._heed_s else signal.SIGKILL)

    def spare(self, worker: FleetWorker) -> None:
        """Cancel the kill that follows an interrupt: the process has left its job, and exits by itself."""
        worker.state, worker.force_s, worker.member_id = ProcessState.SPARED, math.inf, -1

    @property
    def deadline_s(self) -> float:
        """Time at which ``tick`` is due."""
        return min((worker.force_s for worker in self._living.values()), default=math.inf)

    def tick(self, now: float) -> None:
        """Kill the processes that have not heeded an interrupt."""
        for worker in self:
            if worker.force_s <= now:
                worker.force_s = math.inf
                self._order_kill(worker, signal.SIGKILL)

    # -- who is there -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of slots."""
        return sum(self.slots.values())

    def knows(self, worker_id: int) -> bool:
        """True if the fleet has ordered this process, at any time."""
        return worker_id in self._living or worker_id in self._past

    def speaker(self, identity: bytes, message: Any) -> FleetWorker | None:
        """The worker that sent ``message`` about its current job; ``None`` if it was given up or has another."""
        found = (worker for worker in self._living.values() if worker.identity == identity)
        worker = next(found, None)
        return None if worker is None or getattr(message, "worker_id", -1) != worker.member_id else worker

    def of(self, ids: Collection[int]) -> list[FleetWorker]:
        """Workers with one of these ids in their jobs."""
        return [worker for worker in self if worker.member_id >= 0 and worker.member_id in ids]

    @property
    def vacated(self) -> set[str]:
        """Leaving hosts on which no worker has a job any more."""
        return self.leaving - {worker.host for worker in self if worker.member_id >= 0}

    @property
    def free(self) -> list[FleetWorker]:
        """Connected workers without a job, on hosts that do not leave."""
        return [
            worker
            for worker in self
            if worker.state is ProcessState.CONNECTED and worker.member_id < 0 and worker.host not in self.leaving
        ]

    def spread(self, slots: Mapping[str, int], size: int, reserved: Sequence[str] = ()) -> dict[str, int]:
        """Slots by host for a job of ``size``, from the ``slots`` that it has and the free workers.

        It gets workers on hosts where it has most, and most are free, and gives workers back where it has fewest.
        ``reserved``: hosts of free workers that others will get.
        """
        has, free = Counter(slots), Counter(worker.host for worker in self.free)
        free.subtract(reserved)
        while sum(has.values()) < size:
            host = max(free, key=lambda each: (free[each] > 0, has[each], free[each]))
            has[host], free[host] = has[host] + 1, free[host] - 1
        while sum(has.values()) > size:
            host = min((each for each in has if has[each]), key=lambda each: has[each])
            has[host] -= 1
        return {host: slots for host, slots in has.items() if slots}

    # -- inside -------------------------------------------------------------------------------------------------------

    def _on_offered(self, offer: HostOffered) -> list[FleetWorker]:
        host = offer.host
        if host not in self.leaving:
            self.slots[host] = offer.slots
            if not offer.slots:
                del self.slots[host]
        exited: list[FleetWorker] = []
        if offer.running is not None:
            self._see(host, offer.running)
            ended, running = {each.worker_id: each for each in offer.ended}, {each.worker_id for each in offer.running}
            for worker in self._on(host):
                if worker.worker_id not in running:  # exited, or never started because the order was lost
                    unknown = WorkerExited(worker.worker_id, -signal.SIGKILL, error="its exit was not reported")
                    exited += self._take_out(worker, ended.get(worker.worker_id, unknown))
        self._fill(host)
        return exited

    def _see(self, host: str, running: Sequence[Started]) -> None:
        """Note what runs on a host; processes of other fleets, whose worker ids must not be used again, are killed."""
        for each in running:
            worker = self._living.get(each.worker_id) or self._past.get(each.worker_id)
            if worker is None:
                worker = FleetWorker(each.worker_id, host, state=ProcessState.EXITED)
                self._next = max(self._next, each.worker_id + 1)
            self._on_started(worker, each.pid)

    def _on_started(self, worker: FleetWorker, pid: int) -> None:
        worker.pid = pid
        if worker.state is ProcessState.ORDERED:
            worker.state = ProcessState.STARTED
        elif worker.state is ProcessState.EXITED:  # it was given up, or lost with its host
            self._past.pop(worker.worker_id, None)
            self._living[worker.worker_id] = worker
            worker.state, worker.member_id = ProcessState.KILLED, -1
            self._order_kill(worker, signal.SIGKILL)
        elif worker.state is ProcessState.KILLED:  # the kill may have been lost
            self._order_kill(worker, signal.SIGKILL)

    def _on_exited(self, exited: WorkerExited) -> list[FleetWorker]:
        worker = self._living.get(exited.worker_id)
        if worker is None:  # its exit was reported before
            return []
        is_early = worker.state in (ProcessState.ORDERED, ProcessState.STARTED)
        found = self._take_out(worker, exited)
        if self._fill(worker.host) and is_early:  # one that is not replaced ended by no fault of its own
            self._early += 1
            if self._early > max(MOST_EARLY, self.size):
                self.given_up = exited
        return found

    def _on_lost(self, lost: HostLost) -> list[FleetWorker]:
        self.slots.pop(lost.host, None)
        self.leaving.discard(lost.host)
        self._withdraw_starts(lost.host)
        words = f"is lost with its host: {lost.reason}"
        return [
            each
            for worker in self._on(lost.host)
            for each in self._take_out(worker, WorkerExited(worker.worker_id, -signal.SIGKILL, words))
        ]

    def _on(self, host: str) -> list[FleetWorker]:
        return [worker for worker in self if worker.host == host]

    def _fill(self, host: str) -> bool:
        """Order a process for each slot that has none; false if there is none."""
        missing = self.slots.get(host, 0) - len(self._on(host))
        if missing <= 0:
            return False
        ids = tuple(range(self._next, self._next + missing))
        self._living.update({worker_id: FleetWorker(worker_id, host) for worker_id in ids})
        self._next += missing
        self._orders.append(StartProcesses(host, ids))
        return True

    def _withdraw_starts(self, host: str) -> None:
        """Forget the starts on a host that have not been carried out yet."""
        for order in [each for each in self._orders if isinstance(each, StartProcesses) and each.host == host]:
            self._orders.remove(order)
            for worker_id in order.worker_ids:
                self._living.pop(worker_id, None)

    def _take_out(self, worker: FleetWorker, exited: WorkerExited) -> list[FleetWorker]:
        """Note an exit; returns the process, unless it was returned before, as it had been given up."""
        is_new = worker.exited is None
        worker.state, worker.exited, worker.force_s = ProcessState.EXITED, exited, math.inf
        self._past[worker.worker_id] = self._living.pop(worker.worker_id)
        return [worker] if is_new else []

    def _order_kill(self, worker: FleetWorker, number: int) -> None:
        self._orders.append(KillProcess(worker.host, worker.worker_id, number))
