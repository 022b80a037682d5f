"""Sums over the shards of all workers, in the order of the shard tree.

    sums = ShardSums(lane, tensors, Shards(0, 8), like, scales)
    every = sums.of({Shards(0, 4): parts})          # on the worker that has shards 0 to 3

If every worker has one partial sum, and the engine adds workers in the tree's order, this is an all-reduce. Otherwise
each worker adds up its share of the elements: it receives all workers' partial sums of the share (all-to-all), adds
them in the tree's order, and sends the results to all (all-gather). That moves no more bytes, but copies more often.

Shard tree: one order of adding up a batch's shards, so that any number of workers gets the same bits. Pure.

>>> combine(Shards(0, 5), {Shards(i, i + 1): str(i) for i in range(5)}, "({}+{})".format)
'(((0+1)+(2+3))+4)'

A range of n shards is split in two: the first 2^k, for the largest 2^k < n, and the rest. A worker has a block of
consecutive shards and adds up the ranges of the tree that lie within its block. Ranges that span several workers are
added after the exchange of the partial sums.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar, final

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.engine import Memory
from farandole.gradients.buckets import Bucket, Piece, lay_out
from farandole.gradients.exchange import LONE_BYTES
from farandole.gradients.tensors import T, Tensors
from farandole.runtime.collectives.planned import PlannedLane

Value = TypeVar("Value")


class Shards(NamedTuple):
    """Shards ``begin`` to ``end - 1`` of a batch."""

    begin: int
    end: int


def halves(shards: Shards) -> tuple[Shards, Shards]:
    """The two ranges that add up to a range of more than one shard.

    >>> halves(Shards(0, 5))
    (Shards(begin=0, end=4), Shards(begin=4, end=5))
    """
    middle = shards.begin + (1 << ((shards.end - shards.begin - 1).bit_length() - 1))
    return Shards(shards.begin, middle), Shards(middle, shards.end)


def block(rank: int, size: int, count: int) -> Shards:
    """Shards of worker ``rank`` of ``size``, out of ``count``; the first workers have one more.

    >>> [block(rank, 3, 8) for rank in range(3)]
    [Shards(begin=0, end=3), Shards(begin=3, end=6), Shards(begin=6, end=8)]
    """
    each, more = divmod(count, size)
    begin = rank * each + min(rank, more)
    return Shards(begin, begin + each + (rank < more))


def is_tree_of_blocks(size: int, count: int) -> bool:
    """True if each of ``size`` blocks is a range of the tree, and the tree above them is the tree over ``size`` shards.

    >>> is_tree_of_blocks(3, 12), is_tree_of_blocks(3, 8)
    (True, False)
    """
    each, more = divmod(count, size)
    return not more and each & (each - 1) == 0


def cover(whole: Shards, part: Shards) -> list[Shards]:
    """Largest ranges of the tree over ``whole`` that lie within ``part``, in order.

    >>> cover(Shards(0, 8), Shards(3, 6))
    [Shards(begin=3, end=4), Shards(begin=4, end=6)]
    """
    if part.begin <= whole.begin and whole.end <= part.end:
        return [whole]
    if part.end <= whole.begin or whole.end <= part.begin:
        return []
    left, right = halves(whole)
    return cover(left, part) + cover(right, part)


def combine(whole: Shards, sums: Mapping[Shards, Value], add: Callable[[Value, Value], Value]) -> Value:
    """Add up the ``sums`` that cover ``whole``, along the tree; ``add(left, right)`` may change ``left``."""
    if whole in sums:
        return sums[whole]
    left, right = halves(whole)
    return add(combine(left, sums, add), combine(right, sums, add))


Partial: TypeAlias = Mapping[Shards, Sequence[T]]

CHUNK_BYTES = 2**20
"""Size of a chunk: small enough to stay in the cache between one worker's copy and another worker's sum."""

UNWIDENED = (DType.FLOAT32, DType.FLOAT64)
"""Dtypes that engines round at every addition; 16-bit dtypes are widened and rounded once, at the end."""


def add_tensors(tensors: Tensors[T], whole: Shards, partial: Partial[T]) -> list[T]:
    """Sums if one worker has all shards; overwrites ``partial``."""

    def add(left: list[T], right: list[T]) -> list[T]:
        tensors.add(left, right)
        return left

    return combine(whole, {shards: list(parts) for shards, parts in partial.items()}, add)


class _Piece(NamedTuple):
    """Elements ``begin`` to ``end - 1`` of a tensor, and their place in a chunk."""

    tensor: int
    begin: int
    end: int
    offset: int


@final
class _Chunk(NamedTuple, Generic[T]):
    """Unit of the exchange: pieces of tensors of one dtype and scale, their send buffers, and the results."""

    pieces: list[_Piece]
    sent: list[T]
    result: Array
    scale: float


@final
class _Bucket(Generic[T]):
    """Unit of the all-reduce: tensors side by side in engine memory (``views``), or one large tensor in place."""

    def __init__(
        self, bucket: Bucket, memory: Memory, like: Sequence[T], scale: float, view: Callable[[Array, T], T]
    ) -> None:
        self.which = [slot.piece for slot in bucket.slots]
        self.how = Reduction(ReduceOp.SUM, postscale=scale)
        self.views: list[T] = []
        if not bucket.lone:
            self.array = memory.array(bucket.dtype, bucket.start, bucket.count)
            self.views = [view(self.array.slice(slot.offset, slot.count), like[slot.piece]) for slot in bucket.slots]


@final
class ShardSums(Generic[T]):
    """Sums of lists of tensors like ``like``, multiplied by ``scales``; alike on every member. Made collectively."""

    def __init__(
        self, lane: PlannedLane, tensors: Tensors[T], whole: Shards, like: Sequence[T], scales: Sequence[float]
    ) -> None:
        self._lane, self._tensors, self._whole = lane, tensors, whole
        self._parts = [cover(whole, block(rank, lane.size, whole.end)) for rank in range(lane.size)]
        self._results = list(like)
        self._buckets: list[_Bucket[T]] = []
        self._chunks: list[_Chunk[T]] = []
        arrays = [tensors.adapter.array(tensor) for tensor in like]
        is_reduction = lane.adds_as_tree and is_tree_of_blocks(lane.size, whole.end)
        reduced = [is_reduction and array.dtype in UNWIDENED for array in arrays]
        for scale in dict.fromkeys(scales):
            self._lay_out_buckets([r and s == scale for r, s in zip(reduced, scales, strict=True)], like, scale)
        self._lay_out_chunks([i for i, r in enumerate(reduced) if not r], like, arrays, scales)

    def of(self, partial: Partial[T]) -> list[T]:
        """Return the sums in ``partial`` or new memory: scripts may keep them, forked children must not see them."""
        results = list(self._results)
        for number, bucket in enumerate(self._buckets):
            [tensors] = partial.values()
            self._reduce(f"bucket {number}", bucket, tensors, results)
        for number, chunk in enumerate(self._chunks):
            self._add(f"chunk {number}", chunk, partial)
        given = {id(tensor) for tensors in partial.values() for tensor in tensors}
        return [total if id(total) in given else self._tensors.clone(total) for total in results]

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Element-wise maximum over the members."""
        found = array("q", numbers)
        self._lane.allreduce("largest", Array.of_numbers(found), Reduction(ReduceOp.MAX))
        return found.tolist()

    def _lay_out_buckets(self, which: Sequence[bool], like: Sequence[T], scale: float) -> None:
        arrays = map(self._tensors.adapter.array, like)
        pieces = [Piece(a.count, a.dtype, a.device) if w else None for w, a in zip(which, arrays, strict=True)]
        layout = lay_out(pieces, self._lane.session.settings.bucket_bytes, LONE_BYTES)
        memory, view = self._lane.allocate(layout.nbytes), self._tensors.on_memory
        self._buckets += [_Bucket(bucket, memory, like, scale, view) for bucket in layout.buckets]

    def _lay_out_chunks(
        self, which: list[int], like: Sequence[T], arrays: Sequence[Array], scales: Sequence[float]
    ) -> None:
        if which:
            self._send = self._lane.allocate(self._lane.size * CHUNK_BYTES)
            self._received = self._lane.allocate(sum(map(len, self._parts)) * CHUNK_BYTES)
        for (_, scale), group in itertools.groupby(which, lambda i: (arrays[i].dtype, scales[i])):
            self._lay_out(list(group), like, arrays, scale)

    def _lay_out(self, which: list[int], like: Sequence[T], arrays: Sequence[Array], scale: float) -> None:
        """Allocate contiguous memory for the sums of some tensors, and lay out the chunks that fill it."""
        size, dtype = self._lane.size, arrays[which[0]].dtype
        counts = [arrays[i].count for i in which]
        ends = list(itertools.accumulate(counts))
        length = size * (CHUNK_BYTES // dtype.itemsize)
        padded = -(-ends[-1] // size) * size
        flat = self._lane.allocate(padded * dtype.itemsize).array(dtype, 0, padded)
        for i, count, end in zip(which, counts, ends, strict=True):
            self._results[i] = self._tensors.on_memory(flat.slice(end - count, count), like[i])
        runs = list(zip(which, counts, ends, strict=True))
        for begin in range(0, ends[-1], length):
            pieces = list(_pieces(runs, begin, begin + length))
            send = self._send.array(dtype)
            sent = [self._tensors.on_memory(send.slice(p.offset, p.end - p.begin)) for p in pieces]
            self._chunks.append(_Chunk(pieces, sent, flat.slice(begin, min(length, padded - begin)), scale))

    def _reduce(self, what: str, bucket: _Bucket[T], tensors: Sequence[T], results: list[T]) -> None:
        sums = bucket.views
        if sums:
            self._tensors.copy(sums, [tensors[i] for i in bucket.which])
            array = bucket.array
        else:
            sums = [self._tensors.adapter.dense(tensors[i]) for i in bucket.which]
            array = self._tensors.adapter.array(sums[0])
        self._lane.allreduce(what, array, bucket.how)
        for i, total in zip(bucket.which, sums, strict=True):
            results[i] = total

    def _add(self, what: str, chunk: _Chunk[T], partial: Partial[T]) -> None:
        received = self._exchange(what, chunk, partial)
        share = chunk.result.count // self._lane.size
        own = chunk.result.slice(self._lane.rank * share, share)
        [total] = add_tensors(self._tensors, self._whole, {shards: [part] for shards, part in received.items()})
        if chunk.scale != 1.0:
            self._tensors.scale([total], chunk.scale)
        self._tensors.copy([self._tensors.on_memory(own)], [total])
        self._lane.allgather(what, own, chunk.result, [share] * self._lane.size)

    def _exchange(self, what: str, chunk: _Chunk[T], partial: Partial[T]) -> dict[Shards, T]:
        """All members' partial sums of this member's share of the chunk's elements."""
        size, length = self._lane.size, chunk.result.count
        share, dtype = length // size, chunk.result.dtype
        send, received = self._send.array(dtype, 0, length), self._received.array(dtype)
        found: dict[Shards, T] = {}
        for turn in range(max(map(len, self._parts))):
            mine = self._parts[self._lane.rank][turn : turn + 1]
            for shards in mine:
                parts = [self._tensors.part(partial[shards][p.tensor], p.begin, p.end) for p in chunk.pieces]
                self._tensors.copy(chunk.sent, parts)
            coming = [shards for parts in self._parts for shards in parts[turn : turn + 1]]
            gathered = received.slice(len(found) * share, len(coming) * share)
            counts = [share * len(parts[turn : turn + 1]) for parts in self._parts]
            given = send if mine else send.slice(0, 0)
            self._lane.alltoall(what, given, [share * len(mine)] * size, gathered, counts)
            for i, shards in enumerate(coming):
                found[shards] = self._tensors.on_memory(gathered.slice(i * share, share))
        return found


def _pieces(runs: Sequence[tuple[int, int, int]], begin: int, end: int) -> Iterator[_Piece]:
    """Pieces of the tensors within elements ``begin`` to ``end - 1`` of their common memory."""
    for tensor, count, last in runs:
        first = last - count
        if first < end and begin < last and count:
            yield _Piece(tensor, max(begin - first, 0), min(end, last) - first, max(first - begin, 0))
