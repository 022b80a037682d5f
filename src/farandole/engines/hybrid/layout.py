"""Members of a group by host, and the lanes by which data travel between hosts; pure.

>>> layout = HostLayout.of(("a", "a", "a", "b"), member=1)
>>> layout.hosts, layout.host, layout.index, layout.lanes
(((0, 1, 2), (3,)), 0, 1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from farandole.collective import Array, DType
from farandole.engines.arrays import pieces, plain_memory, shares, split
from farandole.engines.engine import Memory
from farandole.engines.hybrid.pipeline import IN_FLIGHT


@final
@dataclass(frozen=True, slots=True)
class HostLayout:
    """Members by host, from the view of one member. All are indices in the group, not global ranks.

    A *lane* connects one member of each host, its *carriers*: lane 0 the first members, lane 1 the second, and so on.
    There are as many ``lanes`` as the smallest host has members. Each lane carries an equal share of an array that
    belongs to all members, so that a host sends and receives everything once, however many members it has. The data of
    a single member use one lane, of which that member is a *passenger*.
    """

    hosts: tuple[tuple[int, ...], ...]
    host: int
    index: int
    lanes: int

    @classmethod
    def of(cls, names: Sequence[str], member: int) -> HostLayout:
        """Make the layout from ``names``, the host of each member; hosts are ordered by their first members."""
        by_host: dict[str, list[int]] = {}
        for each, name in enumerate(names):
            by_host.setdefault(name, []).append(each)
        host, index = list(by_host).index(names[member]), by_host[names[member]].index(member)
        return cls(tuple(map(tuple, by_host.values())), host, index, min(map(len, by_host.values())))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Members of this host, including this member."""
        return self.hosts[self.host]

    @property
    def carries(self) -> bool:
        """True if this member carries a lane, whose number is then its index."""
        return self.index < self.lanes

    @property
    def lane(self) -> int:
        """Lane of which this member is a passenger."""
        return self.index % self.lanes

    @property
    def is_even(self) -> bool:
        """True if all hosts have the same number of members: then each member carries only its own data."""
        return all(len(members) == self.lanes for members in self.hosts)

    def carriers(self, lane: int) -> tuple[int, ...]:
        """Carriers of a lane, by host."""
        return tuple(members[lane] for members in self.hosts)

    def passengers(self, host: int, lane: int) -> tuple[int, ...]:
        """Members of a host whose own data use ``lane``; its carrier is first."""
        return self.hosts[host][lane :: self.lanes]


PIECE_BYTES = 2 * 2**20
"""Long messages are pipelined in pieces of this size."""
ROUND_BYTES = 8 * 2**20
"""The same for messages that go through scratch memory of the engine; bounds that memory."""
SHARE_BYTES = 32 * 1024
"""Smallest share that is worth a message of its own: small arrays use only the first lane."""


@final
class Shared:
    """An array that belongs to all members, in pieces, each of which is divided among the carriers of a host.

    ``own[k]`` is this member's share of ``pieces[k]``, and ``counts[k]`` the size of each neighbour's share.
    """

    def __init__(self, layout: HostLayout, array: Array) -> None:
        self.pieces = pieces(array, PIECE_BYTES)
        waiting = [0] * (len(layout.neighbours) - layout.lanes)
        least = SHARE_BYTES // array.dtype.itemsize
        self.counts = [shares(piece.count, layout.lanes, least) + waiting for piece in self.pieces]
        self.own = [split(*each)[layout.index] for each in zip(self.pieces, self.counts, strict=True)]


@final
class MemberParts:
    """Views of ``whole``, which holds ``counts[p]`` elements for each member ``p``.

    ``of`` is the part of each member. ``lane`` are the elements that this member carries (contiguous), ``by_host`` is
    their number for each host, and ``arrived`` are those for this host. ``by_neighbour`` is the number of elements that
    each member of this host carries.
    """

    def __init__(self, layout: HostLayout, whole: Array, counts: Sequence[int]) -> None:
        order = [[layout.passengers(host, lane) for host in range(len(layout.hosts))] for lane in range(layout.lanes)]
        sizes = [[sum(counts[p] for p in members) for members in hosts] for hosts in order]
        members = [p for hosts in order for passengers in hosts for p in passengers]
        self.whole = whole
        self.of = dict(zip(members, split(whole, [counts[p] for p in members]), strict=True))
        self.by_neighbour = [*map(sum, sizes), *[0] * (len(layout.neighbours) - layout.lanes)]
        self.lane = split(whole, self.by_neighbour)[layout.index]
        self.by_host = sizes[layout.index] if layout.carries else [0] * len(layout.hosts)
        self.arrived = split(self.lane, self.by_host)[layout.host]


@final
class Rounds:
    """Parts of bounded size: round ``k`` takes the next piece of each member's part of ``counts`` elements.

    ``rooms`` are the engine's memory for the rounds in flight; they grow on demand.
    """

    def __init__(self, layout: HostLayout, dtype: DType, counts: Sequence[int], rooms: list[Memory]) -> None:
        self._layout, self._dtype, self._counts, self._rooms = layout, dtype, counts, rooms
        self._each = max(SHARE_BYTES, ROUND_BYTES // len(counts)) // dtype.itemsize
        self.number = max(1, -(-max(counts) // self._each))
        self._made: dict[int, MemberParts] = {}

    def __getitem__(self, k: int) -> MemberParts:
        """Parts of round ``k``, in the memory that round ``k - IN_FLIGHT`` used."""
        if k not in self._made:
            sizes = [self._span(member, k)[1] for member in range(len(self._counts))]
            slot, nbytes = k % IN_FLIGHT, sum(sizes) * self._dtype.itemsize
            if self._rooms[slot].nbytes < nbytes:
                self._rooms[slot] = plain_memory(nbytes)
            self._made.pop(k - IN_FLIGHT, None)
            self._made[k] = MemberParts(self._layout, self._rooms[slot].array(self._dtype, count=sum(sizes)), sizes)
        return self._made[k]

    def cut(self, part: Array, member: int, k: int) -> Array:
        """Slice of the part of ``member`` that belongs to round ``k``."""
        return part.slice(*self._span(member, k))

    def _span(self, member: int, k: int) -> tuple[int, int]:
        start = min(self._counts[member], k * self._each)
        return start, min(self._counts[member] - start, self._each)
