"""Sums over the shards of all workers, in the order of the shard tree.

    sums = ShardSums(lane, Shards(0, 8), tensors_like)
    every = sums.of({Shards(0, 4): tensors})        # on the worker that has shards 0 to 3

Each worker adds up its part of all elements: everybody's partial sums of that part come to it (all-to-all), it adds
them in the tree's order, and the results go to all (all-gather). That moves as many bytes as an all-reduce does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch

from farandole.collective import ReduceOp
from farandole.runtime.planned import PlannedLane
from farandole.runtime.reduction import Reduction
from farandole.runtime.shard_tree import Shards, block, combine, cover
from farandole.torch.adapter import adapter
from farandole.torch.memory import as_bytes

Partial: TypeAlias = Mapping[Shards, Sequence[torch.Tensor]]

CHUNK_BYTES = 16 * 2**20
"""Tensors are exchanged together up to this size: the larger, the more memory is needed beside them."""


def add_tensors(whole: Shards, partial: Partial) -> list[torch.Tensor]:
    """The sums where one worker has all shards; overwrites ``partial``."""

    def add(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
        torch._foreach_add_(left, right)
        return left

    return combine(whole, {shards: list(tensors) for shards, tensors in partial.items()}, add)


@final
@dataclass(frozen=True)
class _Chunk:
    """Tensors ``first`` to ``last - 1``, of one dtype, one after the other; each worker adds up ``share`` elements."""

    first: int
    last: int
    share: int
    result: torch.Tensor


@final
class ShardSums:
    """For lists of tensors like ``like``, the same on every member. Making one is collective."""

    def __init__(self, lane: PlannedLane, whole: Shards, like: Sequence[torch.Tensor]) -> None:
        self._lane, self._whole = lane, whole
        self._shapes = [tensor.shape for tensor in like]
        size = lane.size
        self._parts = [cover(whole, block(rank, size, whole.end)) for rank in range(size)]
        ranges = _ranges(like)
        shares = [-(-sum(each.numel() for each in like[a:b]) // size) for a, b in ranges]
        nbytes = [_aligned(share * like[a].element_size()) for share, (a, _) in zip(shares, ranges, strict=True)]
        largest = max(nbytes, default=0)
        self._send = as_bytes(lane.allocate(size * largest))
        self._received = as_bytes(lane.allocate(sum(map(len, self._parts)) * largest))
        results = as_bytes(lane.allocate(size * sum(nbytes)))
        self._chunks, offset = [], 0
        for (first, last), share, each in zip(ranges, shares, nbytes, strict=True):
            result = results[offset : offset + size * each].view(like[first].dtype)[: size * share]
            self._chunks.append(_Chunk(first, last, share, result))
            offset += size * each

    def of(self, partial: Partial) -> list[torch.Tensor]:
        """The sums, in memory that the next call overwrites."""
        for number, chunk in enumerate(self._chunks):
            self._add(f"chunk {number}", chunk, partial)
        return [
            part.view(self._shapes[chunk.first + i])
            for chunk in self._chunks
            for i, part in enumerate(self._cut(chunk, chunk.result))
        ]

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest that any member has, of each."""
        found = torch.tensor(numbers, dtype=torch.int64)
        self._lane.allreduce("largest", adapter.array(found), Reduction(ReduceOp.MAX))
        largest: list[int] = found.tolist()
        return largest

    def _add(self, what: str, chunk: _Chunk, partial: Partial) -> None:
        received = self._exchange(what, chunk, partial)
        own = chunk.result[self._lane.rank * chunk.share :][: chunk.share]
        own.copy_(combine(self._whole, received, torch.Tensor.add_))
        self._lane.allgather(what, adapter.array(own), adapter.array(chunk.result), [chunk.share] * self._lane.size)

    def _exchange(self, what: str, chunk: _Chunk, partial: Partial) -> dict[Shards, torch.Tensor]:
        """Everybody's partial sums of this member's share of the chunk's elements."""
        size, dtype, share = self._lane.size, chunk.result.dtype, chunk.share
        send, received = self._send.view(dtype)[: size * share], self._received.view(dtype)
        found: dict[Shards, torch.Tensor] = {}
        for turn in range(max(map(len, self._parts))):
            mine = self._parts[self._lane.rank][turn : turn + 1]
            for shards in mine:
                tensors = partial[shards][chunk.first : chunk.last]
                with self._lane.phase(what, "copy", send.nbytes):
                    torch._foreach_copy_(self._cut(chunk, send), [each.reshape(-1) for each in tensors])
            coming = [shards for parts in self._parts for shards in parts[turn : turn + 1]]
            begin = len(found) * share
            place = received[begin : begin + len(coming) * share]
            counts = [share * len(parts[turn : turn + 1]) for parts in self._parts]
            own = send if mine else send[:0]
            self._lane.alltoall(what, adapter.array(own), [share * len(mine)] * size, adapter.array(place), counts)
            found.update(zip(coming, place.split(share), strict=True))
        return found

    def _cut(self, chunk: _Chunk, flat: torch.Tensor) -> list[torch.Tensor]:
        """The places of the chunk's tensors in ``flat``."""
        sizes = [shape.numel() for shape in self._shapes[chunk.first : chunk.last]]
        return list(flat[: sum(sizes)].split(sizes))


def _ranges(like: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Consecutive tensors of one dtype, up to ``CHUNK_BYTES`` (or one tensor, where that is larger)."""
    found: list[tuple[int, int]] = []
    first = nbytes = 0
    for i, tensor in enumerate(like):
        if i > first and (tensor.dtype != like[first].dtype or nbytes + tensor.nbytes > CHUNK_BYTES):
            found.append((first, i))
            first, nbytes = i, 0
        nbytes += tensor.nbytes
    return [*found, (first, len(like))] if like else []


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
