"""Sums over the shards of all workers, in the order of the shard tree.

    sums = ShardSums(lane, Shards(0, 8), tensors_like, scales)
    every = sums.of({Shards(0, 4): tensors})        # on the worker that has shards 0 to 3

Each worker adds up its part of all elements: everybody's partial sums of that part come to it (all-to-all), it adds
them in the tree's order, and the results go to all (all-gather). That moves as many bytes as an all-reduce does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import torch

from farandole.collective import ReduceOp
from farandole.runtime.planned import PlannedLane
from farandole.runtime.reduction import Reduction
from farandole.runtime.shard_tree import Shards, block, combine, cover
from farandole.torch.adapter import adapter
from farandole.torch.memory import as_bytes

Partial: TypeAlias = Mapping[Shards, Sequence[torch.Tensor]]

CHUNK_BYTES = 2**20
"""What is exchanged at a time: so little that it stays in the cache between one worker's copy and the other's sum."""


def add_tensors(whole: Shards, partial: Partial) -> list[torch.Tensor]:
    """The sums where one worker has all shards; overwrites ``partial``."""

    def add(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
        torch._foreach_add_(left, right)
        return left

    return combine(whole, {shards: list(tensors) for shards, tensors in partial.items()}, add)


class _Piece(NamedTuple):
    """Elements ``begin`` to ``end - 1`` of a tensor, and their place in a chunk."""

    tensor: int
    begin: int
    end: int
    place: int


@final
class _Chunk:
    """What is exchanged at a time: pieces of tensors of one dtype and scale, and where the results go."""

    def __init__(self, pieces: list[_Piece], result: torch.Tensor, scale: float) -> None:
        self.pieces, self.result, self.scale = pieces, result, scale


@final
class ShardSums:
    """For lists of tensors like ``like``, the same on every member, each multiplied by its scale. Made collectively."""

    def __init__(self, lane: PlannedLane, whole: Shards, like: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
        self._lane, self._whole = lane, whole
        self._parts = [cover(whole, block(rank, lane.size, whole.end)) for rank in range(lane.size)]
        self._send = as_bytes(lane.allocate(lane.size * CHUNK_BYTES))
        self._received = as_bytes(lane.allocate(sum(map(len, self._parts)) * CHUNK_BYTES))
        self._results: list[torch.Tensor] = []
        self._chunks: list[_Chunk] = []
        for (_, scale), group in itertools.groupby(range(len(like)), lambda i: (like[i].dtype, scales[i])):
            self._lay_out(list(group), like, scale)

    def of(self, partial: Partial) -> list[torch.Tensor]:
        """The sums, in memory that the next call overwrites."""
        for number, chunk in enumerate(self._chunks):
            self._add(f"chunk {number}", chunk, partial)
        return self._results

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest that any member has, of each."""
        found = torch.tensor(numbers, dtype=torch.int64)
        self._lane.allreduce("largest", adapter.array(found), Reduction(ReduceOp.MAX))
        largest: list[int] = found.tolist()
        return largest

    def _lay_out(self, which: list[int], like: Sequence[torch.Tensor], scale: float) -> None:
        """Memory for the sums of some tensors, one after the other, and the chunks it is filled by."""
        size, first = self._lane.size, like[which[0]]
        counts = [like[i].numel() for i in which]
        ends = list(itertools.accumulate(counts))
        length = size * (CHUNK_BYTES // first.element_size())
        padded = -(-ends[-1] // size) * size
        flat = as_bytes(self._lane.allocate(padded * first.element_size())).view(first.dtype)[:padded]
        for i, count, end in zip(which, counts, ends, strict=True):
            self._results.append(flat[end - count : end].view(like[i].shape))
        places = list(zip(which, counts, ends, strict=True))
        for begin in range(0, ends[-1], length):
            pieces = list(_pieces(places, begin, begin + length))
            self._chunks.append(_Chunk(pieces, flat[begin : begin + length], scale))

    def _add(self, what: str, chunk: _Chunk, partial: Partial) -> None:
        received = self._exchange(what, chunk, partial)
        share = len(chunk.result) // self._lane.size
        own = chunk.result[self._lane.rank * share :][:share]
        torch.mul(combine(self._whole, received, torch.Tensor.add_), chunk.scale, out=own)
        self._lane.allgather(what, adapter.array(own), adapter.array(chunk.result), [share] * self._lane.size)

    def _exchange(self, what: str, chunk: _Chunk, partial: Partial) -> dict[Shards, torch.Tensor]:
        """Everybody's partial sums of this member's share of the chunk's elements."""
        size, length = self._lane.size, len(chunk.result)
        share, dtype = length // size, chunk.result.dtype
        send, received = self._send.view(dtype)[:length], self._received.view(dtype)
        found: dict[Shards, torch.Tensor] = {}
        for turn in range(max(map(len, self._parts))):
            mine = self._parts[self._lane.rank][turn : turn + 1]
            for shards in mine:
                self._fill(send, chunk, partial[shards])
            coming = [shards for parts in self._parts for shards in parts[turn : turn + 1]]
            place = received[len(found) * share :][: len(coming) * share]
            counts = [share * len(parts[turn : turn + 1]) for parts in self._parts]
            given = adapter.array(send if mine else send[:0])
            self._lane.alltoall(what, given, [share * len(mine)] * size, adapter.array(place), counts)
            found.update(zip(coming, place.split(share), strict=True))
        return found

    def _fill(self, send: torch.Tensor, chunk: _Chunk, tensors: Sequence[torch.Tensor]) -> None:
        sources = [tensors[p.tensor].reshape(-1)[p.begin : p.end] for p in chunk.pieces]
        targets = [send[p.place : p.place + p.end - p.begin] for p in chunk.pieces]
        torch._foreach_copy_(targets, sources)


def _pieces(places: Sequence[tuple[int, int, int]], begin: int, end: int) -> Iterator[_Piece]:
    """What of the tensors lies in ``begin`` to ``end - 1`` of their common memory."""
    for tensor, count, last in places:
        first = last - count
        if first < end and begin < last and count:
            yield _Piece(tensor, max(begin - first, 0), min(end, last) - first, max(first - begin, 0))
