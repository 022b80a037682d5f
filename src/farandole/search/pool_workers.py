"""Workers of a pool that have come to the search, and the starts of trials that wait for one of them.

    workers = PoolWorkers(pool, router.send)
    if pool.came(hello.host, hello.pid):
        workers.add(PoolWorker(identity, hello.host, hello.pid))
    workers.starts.append((job, start))                     # what a membership has decided
    worker = workers.order("node7", order)                  # a free one there, which joins a trial now
    slots = workers.spread({"node7": 1}, 3)                 # where a trial of three would have its workers

A worker is free, or has a trial, from the order to join until it says that it has left, or its process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from farandole.control.search_messages import PoolRetire, TrialOrder
from farandole.elastic.membership import actions
from farandole.runtime.coordination.downlink import Send
from farandole.search.pools import Pool, ProcessEnded
from farandole.search.trial_job import TrialJob


@final
@dataclass
class PoolWorker:
    """Process of the pool that has come; ``worker_id`` is that of the trial that has it, -1 of a free one.

    One that ``is_killed`` may still speak: an interrupt is all that ends the trial of an engine.
    """

    identity: bytes
    host: str
    pid: int
    worker_id: int = -1
    is_killed: bool = False


@final
class PoolWorkers:
    """Workers that are here. ``starts`` are decided, and wait until a worker is free on the host that they name."""

    def __init__(self, pool: Pool, send: Send) -> None:
        self.starts: list[tuple[TrialJob, actions.Start]] = []
        self._pool, self._send = pool, send
        self._present: dict[bytes, PoolWorker] = {}

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[PoolWorker]:
        return iter(list(self._present.values()))

    def add(self, worker: PoolWorker) -> None:
        """Take in one that has come."""
        self._present[worker.identity] = worker

    def speaker(self, identity: bytes, message: Any) -> PoolWorker | None:
        """The worker that says ``message`` of the trial that it has; ``None`` if it was given up, or has another."""
        worker = self._present.get(identity)
        return None if worker is None or getattr(message, "worker_id", -1) != worker.worker_id else worker

    def ended(self, process: ProcessEnded) -> PoolWorker | None:
        """The worker that was this process, and is here no more; ``None`` if it had not come."""
        for worker in self:
            if worker.pid == process.pid and process.host in ("", worker.host):
                del self._present[worker.identity]
                return worker
        return None

    def of(self, ids: Collection[int]) -> list[PoolWorker]:
        """Workers with one of these worker ids."""
        return [worker for worker in self if worker.worker_id >= 0 and worker.worker_id in ids]

    def elsewhere(self, hosts: Collection[str]) -> list[PoolWorker]:
        """Workers on hosts other than these."""
        return [worker for worker in self if worker.host not in hosts]

    @property
    def busy_hosts(self) -> set[str]:
        """Hosts on which some worker has a trial."""
        return {worker.host for worker in self if worker.worker_id >= 0}

    @property
    def free(self) -> int:
        """Number of workers that are free and not spoken for."""
        return sum(self._is_free(worker) for worker in self) - len(self.starts)

    def kill(self, worker: PoolWorker) -> None:
        """Kill its process; the pool tells of its end."""
        worker.is_killed = True
        self._pool.kill(worker.host, worker.pid)

    def retire(self, worker: PoolWorker) -> None:
        """Let one go that was to be killed and has left its trial: the interrupt may be on its way, into no other."""
        del self._present[worker.identity]
        self._send(worker.identity, PoolRetire())
        self._pool.spare(worker.host, worker.pid)

    def retire_all(self) -> None:
        """Tell all of them that the search is over."""
        for worker in self:
            self._send(worker.identity, PoolRetire())

    def order(self, host: str, order: TrialOrder) -> PoolWorker | None:
        """A free worker on ``host`` that was ordered to join, if there is one; one that cannot be reached has died."""
        for worker in [each for each in self if each.worker_id < 0 and each.host == host]:
            if self._send(worker.identity, order):
                worker.worker_id = order.worker_id
                return worker
            del self._present[worker.identity]
            self._pool.kill(worker.host, worker.pid)  # should it only be cut off; it ends then anyway
        return None

    def spread(self, slots: Mapping[str, int], size: int) -> dict[str, int]:
        """Slots by host for a trial of ``size``, from those that it has and those that are free.

        It gets workers where it has most, and most are free, and gives back where it has fewest.
        """
        has, free = Counter(slots), Counter[str]()
        for worker in self:
            free[worker.host] += self._is_free(worker)
        for _, start in self.starts:
            free[start.host] -= 1
        while sum(has.values()) < size:
            host = max(free, key=lambda each: (free[each] > 0, has[each], free[each]))
            has[host], free[host] = has[host] + 1, free[host] - 1
        while sum(has.values()) > size:
            host = min((each for each in has if has[each]), key=lambda each: has[each])
            has[host] -= 1
        return {host: slots for host, slots in has.items() if slots}

    def _is_free(self, worker: PoolWorker) -> bool:
        return worker.worker_id < 0 and worker.host not in self._pool.leaving
