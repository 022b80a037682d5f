"""Registry of workers: the process of each ``worker_id``, so that no other process takes that of a live worker.

    registry = WorkerRegistry()
    registry.objection(hello)                  # "" if the worker_id is free; otherwise the reason for a refusal
    registry.enter(uid, hello)
    registry.free_worker_id(worker_id=1)       # the worker has left, or has exited

Environment variables are inherited: any child of a worker can send ``Hello`` with its parent's ``worker_id``. Without
any I/O, except for the check whether a worker is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from farandole.control.messages import Hello
from farandole.runtime.coordination.downlink import CONTROL
from farandole.runtime.coordination.forked_children import GUARD


class _Occupant(NamedTuple):
    uid: bytes
    hello: Hello


@final
class WorkerRegistry:
    """Workers of one controller, which sets the check for connected workers: by default all are, always."""

    def __init__(self) -> None:
        self.is_connected: Callable[[bytes], bool] = lambda _: True
        """True if the socket with this identity, of a worker without a relay, is still connected."""
        self._is_relayed: Callable[[bytes], bool] = lambda _: False
        self._by_worker_id: dict[tuple[int, int], _Occupant] = {}  # by size of the job, and worker_id in it

    def below(self, is_relayed: Callable[[bytes], bool]) -> WorkerRegistry:
        """Set the predicate that returns whether a worker, by the identity prefix of its sockets, uses a relay."""
        self._is_relayed = is_relayed
        return self

    def objection(self, hello: Hello) -> str:
        """Reason why a process cannot have its ``worker_id``; "" if it can."""
        occupant = self._by_worker_id.get((hello.expected, hello.worker_id))
        if occupant is None or occupant.hello.pid == hello.pid or not self._is_there(occupant.uid):
            return ""
        where, other = f"rank {hello.worker_id} on {occupant.hello.host}", occupant.hello.pid
        return (
            f"{where} is process {other}, which has not left the job, and process {hello.pid} on {hello.host} says "
            f"that it is rank {hello.worker_id}, too. {GUARD}. Or is the job started twice with one controller?"
        )

    def enter(self, uid: bytes, hello: Hello) -> None:
        """Register the process of a ``worker_id``."""
        self._by_worker_id[hello.expected, hello.worker_id] = _Occupant(uid, hello)

    def free_worker_id(self, worker_id: int) -> None:
        """Free ``worker_id``."""
        for known in [known for known in self._by_worker_id if known[1] == worker_id]:
            del self._by_worker_id[known]

    def _is_there(self, uid: bytes) -> bool:
        """True if a worker is connected, or is behind a relay, where its connection is not visible.

        Not every exit is reported: for example, a process that a wrapper shell started may exit unnoticed.
        """
        return self._is_relayed(uid) or self.is_connected(uid + CONTROL)
