"""Bucket layout (which gradients one collective reduces): a pure function from pieces to buckets and offsets.

    >>> pieces = [Piece(3, DType.FLOAT32), Piece(5, DType.FLOAT32), Piece(2, DType.FLOAT64)]
    >>> layout = lay_out(pieces, bucket_bytes=2**20)
    >>> [[slot.piece for slot in bucket.slots] for bucket in layout.buckets]
    [[2], [1, 0]]

Backward passes produce gradients from the last layer to the first, so buckets are filled in reverse order: the first
bucket is complete first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import final

from farandole.collective import DType

ALIGNMENT_BYTES = 64
"""Every piece begins on a cache line."""


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """One gradient. Pieces of one ``group`` (-1: none) share one bucket per dtype and device, of any size."""

    count: int
    dtype: DType
    device: str = "cpu"
    group: int = -1


@final
@dataclass(frozen=True, slots=True)
class BucketSlot:
    """Slot of a piece in its bucket; ``piece`` is its index, ``offset`` counts elements."""

    piece: int
    offset: int
    count: int


@final
@dataclass(frozen=True, slots=True)
class Bucket:
    """Pieces that are reduced by one collective, ``count`` elements from byte ``start`` of the layout's memory.

    A *lone* piece has no place in that memory: it is reduced in place, in its own tensor, and ``start`` is -1.
    """

    dtype: DType
    device: str
    start: int
    count: int
    slots: tuple[BucketSlot, ...]

    @property
    def lone(self) -> bool:
        """True if the bucket is one piece, reduced in its own tensor."""
        return self.start < 0

    @property
    def nbytes(self) -> int:
        """Size in bytes, gaps included."""
        return self.count * self.dtype.itemsize


@final
@dataclass(frozen=True, slots=True)
class BucketLayout:
    """All buckets, in the order of their reduction, and their total memory."""

    buckets: tuple[Bucket, ...]
    nbytes: int


def lay_out(pieces: Sequence[Piece | None], bucket_bytes: int, lone_bytes: float = math.inf) -> BucketLayout:
    """Assign pieces to buckets of at most ``bucket_bytes`` (a larger piece, or a group, has its own bucket).

    Pieces of ``lone_bytes`` or more that belong to no group are lone. ``None`` stands for a gradient that is reduced
    outside buckets; it keeps its index.
    """
    gathering: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    closed: list[list[int]] = []
    for index in reversed(range(len(pieces))):
        piece = pieces[index]
        if piece is None:
            continue
        if is_lone(piece, lone_bytes):
            closed.append([index])
            continue
        key = (piece.dtype, piece.device, piece.group)
        nbytes = _room(piece) * piece.dtype.itemsize
        if key in gathering and piece.group < 0 and filled[key] + nbytes > bucket_bytes:
            closed.append(gathering.pop(key))
        gathering.setdefault(key, []).append(index)
        filled[key] = nbytes if len(gathering[key]) == 1 else filled[key] + nbytes
    members = sorted([*closed, *gathering.values()], key=lambda indices: -indices[-1])
    return _lay_out(pieces, members, lone_bytes)


def is_lone(piece: Piece, lone_bytes: float) -> bool:
    """True if ``piece`` is reduced in its own tensor."""
    return piece.group < 0 and piece.count * piece.dtype.itemsize >= lone_bytes


def _lay_out(pieces: Sequence[Piece | None], members: Sequence[Sequence[int]], lone_bytes: float) -> BucketLayout:
    buckets: list[Bucket] = []
    start = 0
    for indices in members:
        first = pieces[indices[0]]
        if first is not None and is_lone(first, lone_bytes):
            buckets.append(
                Bucket(first.dtype, first.device, -1, first.count, (BucketSlot(indices[0], 0, first.count),))
            )
            continue
        slots: list[BucketSlot] = []
        offset = 0
        for index, piece in ((i, pieces[i]) for i in indices):
            assert piece is not None
            dtype, device = piece.dtype, piece.device
            slots.append(BucketSlot(index, offset, piece.count))
            offset += _room(piece)
        buckets.append(Bucket(dtype, device, start, offset, tuple(slots)))
        start += buckets[-1].nbytes
    return BucketLayout(tuple(buckets), start)


def _room(piece: Piece) -> int:
    """Elements that a piece occupies, rounded up to a cache line."""
    per_line = ALIGNMENT_BYTES // piece.dtype.itemsize
    return -(-piece.count // per_line) * per_line
