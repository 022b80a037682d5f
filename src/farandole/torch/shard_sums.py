"""Sums over the shards of all workers, in the order of the shard tree.

    sums = ShardSums(lane, Shards(0, 8), tensors_like, scales)
    every = sums.of({Shards(0, 4): tensors})        # on the worker that has shards 0 to 3

Where every worker has one partial sum, and the engine adds workers as the tree does, this is an all-reduce. Otherwise
each worker adds up its part of all elements: everybody's partial sums of that part come to it (all-to-all), it adds
them in the tree's order, and the results go to all (all-gather). That moves no more bytes, but copies more often.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import torch

from farandole.collective import ReduceOp, Reduction
from farandole.gradients.buckets import Bucket, Piece, lay_out
from farandole.gradients.shard_tree import Shards, block, combine, cover, is_tree_of_blocks
from farandole.runtime.collectives.planned import PlannedLane
from farandole.torch.adapter import TORCH_DTYPES, adapter
from farandole.torch.memory import LONE_BYTES, as_bytes

Partial: TypeAlias = Mapping[Shards, Sequence[torch.Tensor]]

CHUNK_BYTES = 2**20
"""Size of a chunk: so little that it stays in the cache between one worker's copy and the other's sum."""

UNWIDENED = (torch.float32, torch.float64)
"""Dtypes that engines round at every sum; 16-bit ones they would round once, at the end."""


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
    offset: int


@final
class _Chunk:
    """Unit of the exchange: pieces of tensors of one dtype and scale, and where the results go."""

    def __init__(self, pieces: list[_Piece], result: torch.Tensor, scale: float) -> None:
        self.pieces, self.result, self.scale = pieces, result, scale


@final
class _Bucket:
    """Unit of the all-reduce: tensors side by side in engine memory, ``views``, or a large one where it lies."""

    def __init__(self, bucket: Bucket, content: torch.Tensor, like: Sequence[torch.Tensor], scale: float) -> None:
        self.which = [slot.piece for slot in bucket.slots]
        self.how = Reduction(ReduceOp.SUM, postscale=scale)
        self.views: list[torch.Tensor] = []
        if not bucket.lone:
            self.flat = content[bucket.start :][: bucket.nbytes].view(TORCH_DTYPES[bucket.dtype])
            self.views = [self.flat[s.offset :][: s.count].view(like[s.piece].shape) for s in bucket.slots]


@final
class ShardSums:
    """For lists of tensors like ``like``, the same on every member, each multiplied by its scale. Made collectively."""

    def __init__(self, lane: PlannedLane, whole: Shards, like: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
        self._lane, self._whole = lane, whole
        self._parts = [cover(whole, block(rank, lane.size, whole.end)) for rank in range(lane.size)]
        self._results = list(like)
        self._buckets: list[_Bucket] = []
        self._chunks: list[_Chunk] = []
        is_reduction = lane.adds_as_tree and is_tree_of_blocks(lane.size, whole.end)
        reduced = [is_reduction and tensor.dtype in UNWIDENED for tensor in like]
        for scale in dict.fromkeys(scales):
            self._lay_out_buckets([r and s == scale for r, s in zip(reduced, scales, strict=True)], like, scale)
        self._lay_out_chunks([i for i, r in enumerate(reduced) if not r], like, scales)

    def of(self, partial: Partial) -> list[torch.Tensor]:
        """Return the sums, in ``partial`` or in new memory: a script may keep them, and children must not see them."""
        results = list(self._results)
        for number, bucket in enumerate(self._buckets):
            [tensors] = partial.values()
            self._reduce(f"bucket {number}", bucket, tensors, results)
        for number, chunk in enumerate(self._chunks):
            self._add(f"chunk {number}", chunk, partial)
        given = {id(tensor) for tensors in partial.values() for tensor in tensors}
        return [total if id(total) in given else total.clone() for total in results]

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest that any member has, of each."""
        found = torch.tensor(numbers, dtype=torch.int64)
        self._lane.allreduce("largest", adapter.array(found), Reduction(ReduceOp.MAX))
        largest: list[int] = found.tolist()
        return largest

    def _lay_out_buckets(self, which: Sequence[bool], like: Sequence[torch.Tensor], scale: float) -> None:
        arrays = [adapter.array(tensor) for tensor in like]
        pieces = [Piece(a.count, a.dtype, a.device) if w else None for w, a in zip(which, arrays, strict=True)]
        layout = lay_out(pieces, self._lane.session.settings.bucket_bytes, LONE_BYTES)
        content = as_bytes(self._lane.allocate(layout.nbytes))
        self._buckets += [_Bucket(bucket, content, like, scale) for bucket in layout.buckets]

    def _lay_out_chunks(self, which: list[int], like: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
        if which:
            self._send = as_bytes(self._lane.allocate(self._lane.size * CHUNK_BYTES))
            self._received = as_bytes(self._lane.allocate(sum(map(len, self._parts)) * CHUNK_BYTES))
        for (_, scale), group in itertools.groupby(which, lambda i: (like[i].dtype, scales[i])):
            self._lay_out(list(group), like, scale)

    def _lay_out(self, which: list[int], like: Sequence[torch.Tensor], scale: float) -> None:
        """Memory for the sums of some tensors, one after the other, and the chunks it is filled by."""
        size, first = self._lane.size, like[which[0]]
        counts = [like[i].numel() for i in which]
        ends = list(itertools.accumulate(counts))
        length = size * (CHUNK_BYTES // first.element_size())
        padded = -(-ends[-1] // size) * size
        flat = as_bytes(self._lane.allocate(padded * first.element_size())).view(first.dtype)[:padded]
        for i, count, end in zip(which, counts, ends, strict=True):
            self._results[i] = flat[end - count : end].view(like[i].shape)
        runs = list(zip(which, counts, ends, strict=True))
        for begin in range(0, ends[-1], length):
            pieces = list(_pieces(runs, begin, begin + length))
            self._chunks.append(_Chunk(pieces, flat[begin : begin + length], scale))

    def _reduce(self, what: str, bucket: _Bucket, tensors: Sequence[torch.Tensor], results: list[torch.Tensor]) -> None:
        sums = bucket.views
        if sums:
            torch._foreach_copy_(sums, [tensors[i] for i in bucket.which])
            array = adapter.array(bucket.flat)
        else:
            sums = [adapter.dense(tensors[i]) for i in bucket.which]
            array = adapter.array(sums[0])
        self._lane.allreduce(what, array, bucket.how)
        for i, total in zip(bucket.which, sums, strict=True):
            results[i] = total

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
            gathered = received[len(found) * share :][: len(coming) * share]
            counts = [share * len(parts[turn : turn + 1]) for parts in self._parts]
            given = adapter.array(send if mine else send[:0])
            self._lane.alltoall(what, given, [share * len(mine)] * size, adapter.array(gathered), counts)
            found.update(zip(coming, gathered.split(share), strict=True))
        return found

    def _fill(self, send: torch.Tensor, chunk: _Chunk, tensors: Sequence[torch.Tensor]) -> None:
        sources = [tensors[p.tensor].reshape(-1)[p.begin : p.end] for p in chunk.pieces]
        targets = [send[p.offset : p.offset + p.end - p.begin] for p in chunk.pieces]
        torch._foreach_copy_(targets, sources)


def _pieces(runs: Sequence[tuple[int, int, int]], begin: int, end: int) -> Iterator[_Piece]:
    """Pieces of the tensors that lie in elements ``begin`` to ``end - 1`` of their common memory."""
    for tensor, count, last in runs:
        first = last - count
        if first < end and begin < last and count:
            yield _Piece(tensor, max(begin - first, 0), min(end, last) - first, max(first - begin, 0))
