"""Which process has which place of a job, so that another one cannot take it from a worker that is still there.

    occupants = Occupants()
    occupants.objection(hello)                  # "" if the place is free; otherwise what to tell who wants it
    occupants.enter(uid, hello)
    occupants.leave(place=1)                    # it has left, or has ended

Variables are inherited: any child of a worker can say hello in its parent's place. Without any I/O, but for asking
whether somebody is connected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

from farandole.control.messages import Hello
from farandole.runtime.coordination.downlink import CONTROL
from farandole.runtime.coordination.lineage import GUARD


class _Occupant(NamedTuple):
    uid: bytes
    hello: Hello


@final
class Occupants:
    """One per controller, which says what it can tell of connections: by default all are there for ever."""

    def __init__(self) -> None:
        self.is_connected: Callable[[bytes], bool] = lambda _: True
        """Whether a socket of a worker that speaks to the controller itself, by its identity, is still connected."""
        self._is_relayed: Callable[[bytes], bool] = lambda _: False
        self._by_worker_id: dict[tuple[int, int], _Occupant] = {}  # by size of the job, and place in it

    def below(self, is_relayed: Callable[[bytes], bool]) -> Occupants:
        """Itself, told by whom to learn whether a worker, by what its sockets share, speaks through a relay."""
        self._is_relayed = is_relayed
        return self

    def objection(self, hello: Hello) -> str:
        """Why it cannot have its place; "" if it can."""
        occupant = self._by_worker_id.get((hello.expected, hello.worker_id))
        if occupant is None or occupant.hello.pid == hello.pid or not self._is_there(occupant.uid):
            return ""
        where, other = f"rank {hello.worker_id} on {occupant.hello.host}", occupant.hello.pid
        return (
            f"{where} is process {other}, which has not left the job, and process {hello.pid} on {hello.host} says "
            f"that it is rank {hello.worker_id}, too. {GUARD}. Or is the job started twice with one controller?"
        )

    def enter(self, uid: bytes, hello: Hello) -> None:
        """It has the place."""
        self._by_worker_id[hello.expected, hello.worker_id] = _Occupant(uid, hello)

    def leave(self, worker_id: int) -> None:
        """The place is free."""
        for known in [known for known in self._by_worker_id if known[1] == worker_id]:
            del self._by_worker_id[known]

    def _is_there(self, uid: bytes) -> bool:
        """Not every end is told: not that of a process which a worker's shell has started, for one.

        Of those behind a relay nothing else is known.
        """
        return self._is_relayed(uid) or self.is_connected(uid + CONTROL)
