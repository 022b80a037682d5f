"""Grants: names under which ranks send each other their contributions without the controller; without any I/O.

    grants = Grants(size=2)
    grant = grants.open(order)             # one with ``direct``: every rank has it, and all have orders in one sequence
    grant.hear(0, b"mine")                 # which has been sent to all others
    grant.hear(1, b"theirs")
    grant.next_round()                     # [b"mine", b"theirs"]

A grant is used in rounds. In each round every rank says one thing to all others: its contribution, or ``WITHDRAWN``. If
one has withdrawn, this round and all that follows under this name is the controller's again; else all have what they
need. So every rank ends a round in the same way as the others, whoever is faster, without another message.
"""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.messages import Order
from farandole.runtime.coordination.agreement import title
from farandole.runtime.lanes.announcement import Key

Said: TypeAlias = bytes | None
WITHDRAWN: Said = None


@final
class Grant:
    """Grant of one name: what all ranks have said in this round, and the faster ones in the next.

    ``is_open`` until one has withdrawn.
    """

    __slots__ = ("_said", "is_open", "key", "lane", "number", "order", "round", "title")

    def __init__(self, order: Order, size: int) -> None:
        self.order, self.number = order, order.direct
        self.key: Key = (order.process_set, order.names[0])
        self.lane = f"direct {order.direct}"
        self.title = title(order.kind, order.names[0], order.process_set)
        self.is_open = True
        self.round = 0
        self._said: list[list[Said]] = [[] for _ in range(size)]

    def hear(self, rank: int, said: Said) -> None:
        """Add a rank's part of its next round."""
        self._said[rank].append(said)

    def lacks(self, rank: int) -> bool:
        """True if the part of ``rank`` in this round has not come."""
        return not self._said[rank]

    def next_round(self) -> list[bytes]:
        """End the round if all parts have come: returns them by rank. [] before that, and where one has withdrawn."""
        has_come = True
        for said in self._said:  # no generators: this is done three times in a collective
            if not said:
                has_come = False
            elif said[0] is WITHDRAWN:
                self.is_open = False
        if not has_come or not self.is_open:
            return []
        self.round += 1
        return [part for said in self._said if (part := said.pop(0)) is not None]


@final
class Grants:
    """Grants of one rank, by name and by number. Not for several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._by_key: dict[Key, Grant] = {}
        self._by_number: dict[int, Grant] = {}
        self._newest = 0
        self._early: dict[int, list[tuple[int, Said]]] = {}

    def open(self, order: Order) -> Grant:
        """Add the grant that an order brings, in place of an older one; faster ranks may have spoken already."""
        grant = Grant(order, self._size)
        self.close(self._by_key.get(grant.key))
        self._by_key[grant.key] = self._by_number[grant.number] = grant
        self._newest = grant.number
        for rank, said in self._early.pop(grant.number, ()):
            grant.hear(rank, said)
        return grant

    def find(self, key: Key) -> Grant | None:
        """The grant of a name; ``None`` for none."""
        return self._by_key.get(key)

    def numbered(self, number: int) -> Grant | None:
        """The grant of this number; ``None`` where that has ended here or has not come yet."""
        return self._by_number.get(number)

    def is_to_come(self, number: int) -> bool:
        """True if the grant of this number has not come yet."""
        return number > self._newest

    def all(self) -> list[Grant]:
        """Every grant, oldest first."""
        return list(self._by_number.values())

    def oldest_beyond(self, most: int) -> list[Grant]:
        """The oldest grants, as many as there are more than ``most``."""
        return [] if len(self._by_number) <= most else self.all()[:-most]

    def hear(self, rank: int, number: int, said: Said) -> Grant | None:
        """Take in another rank's part; returns its grant, ``None`` where that has ended here or has not come yet."""
        grant = self._by_number.get(number)
        if grant is not None:
            grant.hear(rank, said)
        elif number > self._newest:
            self._early.setdefault(number, []).append((rank, said))
        return grant

    def close(self, grant: Grant | None) -> None:
        """Forget a grant, so that its name is the controller's again; ``None`` is ignored."""
        if grant is not None:
            grant.is_open = False
            del self._by_key[grant.key], self._by_number[grant.number]
