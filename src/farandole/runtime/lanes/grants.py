"""Grants: names under which ranks send each other their contributions without the controller; without any I/O.

    grants = Grants(size=2)
    grant = grants.open(order)             # an order with ``direct``: every rank receives it, in the same sequence
    grant.add_part(0, b"mine")             # this rank's part, also sent to all others
    grant.add_part(1, b"theirs")
    grant.next_round()                     # [b"mine", b"theirs"]

A grant is used in rounds. In each round every rank sends one part to all others: its contribution, or ``WITHDRAWN``. If
a rank has withdrawn, the controller orders this round and all later ones of the name again; else all ranks have all
parts. So every rank ends a round in the same way, whichever rank is faster, without another message.
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
    """Grant of one name on the peer lane: the parts of this round, and early parts of the next.

    ``is_open`` until a rank has withdrawn.
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

    def add_part(self, rank: int, said: Said) -> None:
        """Add a rank's part of its next round."""
        self._said[rank].append(said)

    def lacks(self, rank: int) -> bool:
        """True if the part of ``rank`` in this round is missing."""
        return not self._said[rank]

    def next_round(self) -> list[bytes]:
        """End the round if all parts are present, and return them by rank; [] if not, or if a rank has withdrawn."""
        has_come = True
        for said in self._said:  # no generators: this runs three times per collective
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
    """Grants of one rank, by name and by number. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._by_key: dict[Key, Grant] = {}
        self._by_number: dict[int, Grant] = {}
        self._newest = 0
        self._early: dict[int, list[tuple[int, Said]]] = {}

    def open(self, order: Order) -> Grant:
        """Add the grant of an order, in place of the name's older grant; faster ranks may have sent parts already."""
        grant = Grant(order, self._size)
        self.close(self._by_key.get(grant.key))
        self._by_key[grant.key] = self._by_number[grant.number] = grant
        self._newest = grant.number
        for rank, said in self._early.pop(grant.number, ()):
            grant.add_part(rank, said)
        return grant

    def find(self, key: Key) -> Grant | None:
        """Grant of a name; ``None`` if there is none."""
        return self._by_key.get(key)

    def numbered(self, number: int) -> Grant | None:
        """Grant with this number; ``None`` if this rank has closed it or has not received it yet."""
        return self._by_number.get(number)

    def is_to_come(self, number: int) -> bool:
        """True if this rank has not received the grant with this number yet."""
        return number > self._newest

    def all(self) -> list[Grant]:
        """Every grant, oldest first."""
        return list(self._by_number.values())

    def oldest_beyond(self, most: int) -> list[Grant]:
        """The oldest grants in excess of ``most``."""
        return [] if len(self._by_number) <= most else self.all()[:-most]

    def add_part(self, rank: int, number: int, said: Said) -> Grant | None:
        """Add another rank's part; returns its grant, ``None`` if this rank closed it or has not received it yet."""
        grant = self._by_number.get(number)
        if grant is not None:
            grant.add_part(rank, said)
        elif number > self._newest:
            self._early.setdefault(number, []).append((rank, said))
        return grant

    def close(self, grant: Grant | None) -> None:
        """Remove a grant; the controller orders its name again. ``None`` is ignored."""
        if grant is not None:
            grant.is_open = False
            del self._by_key[grant.key], self._by_number[grant.number]
