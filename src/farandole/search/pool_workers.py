"""Pool workers that have connected to the search, and the starts of trials that wait for a free worker.

    workers = PoolWorkers(pool, router.send)
    if pool.came(hello.host, hello.pid):
        workers.add(PoolWorker(identity, hello.host, hello.pid))
    workers.starts.append((job, start))                     # a decision of a membership
    worker = workers.order("node7", order)                  # a free worker on node7, which joins a trial now
    slots = workers.spread({"node7": 1}, 3)                 # hosts of the workers of a trial of three

A worker has a trial from the order to join until it reports that it has left, or its process exits; else it is free.
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
    """Process of the pool that has connected; ``worker_id``: its worker id in its trial, -1 if it is free.

    A worker that ``is_killed`` may still send messages: on an engine, a kill is only an interrupt.
    """

    identity: bytes
    host: str
    pid: int
    worker_id: int = -1
    is_killed: bool = False


@final
class PoolWorkers:
    """Connected workers. ``starts``: decided starts of trials that wait for a free worker on their host."""

    def __init__(self, pool: Pool, send: Send) -> None:
        self.starts: list[tuple[TrialJob, actions.Start]] = []
        self._pool, self._send = pool, send
        self._present: dict[bytes, PoolWorker] = {}

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[PoolWorker]:
        return iter(list(self._present.values()))

    def add(self, worker: PoolWorker) -> None:
        """Add a worker that has connected."""
        self._present[worker.identity] = worker

    def speaker(self, identity: bytes, message: Any) -> PoolWorker | None:
        """The worker that sent ``message`` about its current trial; ``None`` if it was given up or has another."""
        worker = self._present.get(identity)
        return None if worker is None or getattr(message, "worker_id", -1) != worker.worker_id else worker

    def ended(self, process: ProcessEnded) -> PoolWorker | None:
        """Remove and return the worker of this process; ``None`` if it had not connected."""
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
        """Number of free workers, without those that ``starts`` will use."""
        return sum(self._is_free(worker) for worker in self) - len(self.starts)

    def kill(self, worker: PoolWorker) -> None:
        """Kill the process of a worker; the pool reports its exit."""
        worker.is_killed = True
        self._pool.kill(worker.host, worker.pid)

    def retire(self, worker: PoolWorker) -> None:
        """Release a killed worker that has left its trial: an interrupt under way must not end another trial."""
        del self._present[worker.identity]
        self._send(worker.identity, PoolRetire())
        self._pool.spare(worker.host, worker.pid)

    def retire_all(self) -> None:
        """Tell all workers that the search is over."""
        for worker in self:
            self._send(worker.identity, PoolRetire())

    def order(self, host: str, order: TrialOrder) -> PoolWorker | None:
        """Order a free worker on ``host`` to join, and return it; a worker that cannot be reached counts as dead."""
        for worker in [each for each in self if each.worker_id < 0 and each.host == host]:
            if self._send(worker.identity, order):
                worker.worker_id = order.worker_id
                return worker
            del self._present[worker.identity]
            self._pool.kill(worker.host, worker.pid)  # in case it is only disconnected, after which it exits anyway
        return None

    def spread(self, slots: Mapping[str, int], size: int) -> dict[str, int]:
        """Slots by host for a trial of ``size``, from the ``slots`` that it has and the free workers.

        It gets workers on hosts where it has most, and most are free, and gives workers back where it has fewest.
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
