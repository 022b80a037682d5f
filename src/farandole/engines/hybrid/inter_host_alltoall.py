"""All-to-all among several hosts, in which every part is sent between hosts once, on the lane of its receiver.

InterHostAlltoall(layout, member, inside, across).alltoall(send, send_counts, recv, recv_counts)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeAlias, final

from farandole.collective import Array, DType
from farandole.engines.arrays import copy, plain_memory, split
from farandole.engines.engine import Engine
from farandole.engines.hybrid.layout import HostLayout

_Part: TypeAlias = tuple[int, int]
"""Part that one member sends to another: the indices of sender and receiver."""
_Parts: TypeAlias = list[_Part]


@final
class InterHostAlltoall:
    """Each part is sent to the neighbour that carries its receiver's lane, to the other host, then to the receiver.

    So a member exchanges messages with one member of each other host instead of all, and the messages are longer by
    that factor. ``across`` is the engine of this member's lane, if it carries one.
    """

    def __init__(self, layout: HostLayout, member: int, inside: Engine, across: Engine | None) -> None:
        self._layout, self._member, self._inside, self._across = layout, member, inside, across
        self._everybody = range(sum(map(len, layout.hosts)))
        self._abroad = [p for p in self._everybody if p not in layout.neighbours]
        self._index = {p: index for members in layout.hosts for index, p in enumerate(members)}
        self._sizes: dict[_Part, int] = {}

    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Run the all-to-all. Collective."""
        self._learn(send_counts, recv_counts)
        mine = [(self._member, to) for to in self._everybody]
        held = dict(zip(mine, split(send, send_counts), strict=True))
        held |= self._step(self._inside, held, *self._to_carriers())
        if self._across is not None:
            held |= self._step(self._across, held, *self._over())
        if not self._layout.is_even:
            held |= self._step(self._inside, held, *self._home())
        for source, member in enumerate(split(recv, recv_counts)):
            copy(member, held[source, self._member])

    def _learn(self, send_counts: Sequence[int], recv_counts: Sequence[int]) -> None:
        """Exchange the sizes of all parts from and to this host."""
        size, neighbours = len(self._everybody), self._layout.neighbours
        said = (ctypes.c_int64 * (2 * size))(*send_counts, *recv_counts)
        heard = (ctypes.c_int64 * (2 * size * len(neighbours)))()
        self._inside.allgather(
            Array(ctypes.addressof(said), len(said), DType.INT64, said),
            Array(ctypes.addressof(heard), len(heard), DType.INT64, heard),
            [2 * size] * len(neighbours),
        )
        for index, neighbour in enumerate(neighbours):
            begin = 2 * size * index
            for other in self._everybody:
                self._sizes[neighbour, other] = heard[begin + other]
                self._sizes[other, neighbour] = heard[begin + size + other]

    def _to_carriers(self) -> tuple[list[_Parts], list[_Parts]]:
        """Step inside: parts for other hosts to the carriers of their receivers, all other parts to the receivers."""
        for_each: list[list[int]] = [[] for _ in self._layout.neighbours]
        for to in self._everybody:
            is_near = to in self._layout.neighbours
            for_each[self._index[to] if is_near else self._index[to] % self._layout.lanes].append(to)
        outgoing = [[(self._member, to) for to in receivers] for receivers in for_each]
        mine = for_each[self._layout.index]
        return outgoing, [[(source, to) for to in mine] for source in self._layout.neighbours]

    def _over(self) -> tuple[list[_Parts], list[_Parts]]:
        """Step across: parts from this host's members to the passengers of this lane on each other host."""
        layout = self._layout
        outgoing, incoming = [], []
        for host, members in enumerate(layout.hosts):
            there = [] if host == layout.host else layout.passengers(host, layout.index)
            here = [] if host == layout.host else layout.passengers(layout.host, layout.index)
            outgoing.append([(source, to) for source in layout.neighbours for to in there])
            incoming.append([(source, to) for source in members for to in here])
        return outgoing, incoming

    def _home(self) -> tuple[list[_Parts], list[_Parts]]:
        """Step inside: received parts to the passengers."""
        layout = self._layout
        lane = layout.index % layout.lanes
        passengers = layout.passengers(layout.host, layout.index)[1:] if layout.carries else ()
        outgoing = [
            [(source, to) for source in self._abroad] if to in passengers else []  #
            for to in layout.neighbours
        ]
        carried = [(source, self._member) for source in self._abroad]
        incoming = [carried if index == lane and not layout.carries else [] for index in range(len(layout.neighbours))]
        return outgoing, incoming

    def _step(
        self, engine: Engine, held: dict[_Part, Array], outgoing: list[_Parts], incoming: list[_Parts]
    ) -> dict[_Part, Array]:
        """Send ``outgoing[i]`` to member ``i`` of ``engine`` and receive ``incoming[i]`` from it."""
        dtype = next(iter(held.values())).dtype
        (send, leaving), (recv, coming) = (self._room(parts, dtype) for parts in (outgoing, incoming))
        for part, member in leaving.items():
            copy(member, held[part])
        send_counts, recv_counts = (
            [sum(self._sizes[part] for part in parts) for parts in each] for each in (outgoing, incoming)
        )
        engine.alltoall(send, send_counts, recv, recv_counts)
        return coming

    def _room(self, parts: list[_Parts], dtype: DType) -> tuple[Array, dict[_Part, Array]]:
        """Memory for these parts, one after the other."""
        flat = [part for each in parts for part in each]
        sizes = [self._sizes[part] for part in flat]
        whole = plain_memory(sum(sizes) * dtype.itemsize).array(dtype, count=sum(sizes))
        return whole, dict(zip(flat, split(whole, sizes), strict=True))
