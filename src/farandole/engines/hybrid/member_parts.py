"""Splitting of the hybrid engine's messages: into shares for the carriers, or into a part for each member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.collective import Array, DType
from farandole.engines.arrays import pieces, plain_memory, shares, split
from farandole.engines.engine import Memory
from farandole.engines.hybrid.layout import HostLayout
from farandole.engines.hybrid.pipeline import IN_FLIGHT

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
