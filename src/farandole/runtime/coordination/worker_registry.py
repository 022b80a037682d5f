"""Occupants of a job: which process has which ``worker_id``, so that no other takes it from a worker still there.

    occupants = WorkerRegistry()
    occupants.objection(hello)                  # "" if the worker_id is free; otherwise the reason for a refusal
    occupants.enter(uid, hello)
    occupants.leave(worker_id=1)                # the worker has left, or has ended

Variables are inherited: any child of a worker can say hello with its parent's ``worker_id``. Without any I/O, but for
asking whether a worker is connected.
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
    """Workers of one controller, which says how to tell if one is connected: by default all are, for ever."""

    def __init__(self) -> None:
        self.is_connected: Callable[[bytes], bool] = lambda _: True
        """True if a socket, by its identity, of a worker that speaks to the controller itself is still connected."""
        self._is_relayed: Callable[[bytes], bool] = lambda _: False
        self._by_worker_id: dict[tuple[int, int], _Occupant] = {}  # by size of the job, and worker_id in it

    def below(self, is_relayed: Callable[[bytes], bool]) -> WorkerRegistry:
        """Set the predicate that tells whether a worker, by what its sockets share, speaks through a relay."""
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
        """Give a process its ``worker_id``."""
        self._by_worker_id[hello.expected, hello.worker_id] = _Occupant(uid, hello)

    def leave(self, worker_id: int) -> None:
        """Free ``worker_id``."""
        for known in [known for known in self._by_worker_id if known[1] == worker_id]:
            del self._by_worker_id[known]

    def _is_there(self, uid: bytes) -> bool:
        """True if a worker is connected, or behind a relay, where nothing else is known.

        Not every end is told: not that of a process which a worker's shell has started, for one.
        """
        return self._is_relayed(uid) or self.is_connected(uid + CONTROL)
