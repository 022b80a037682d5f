"""Adasum: sum of gradients in which parallel components count once (are averaged) and orthogonal components add up.

    adasum.allreduce(engine, [gradient], DType.FLOAT32)

Two gradients are combined by ``Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b``, and many by a binary
tree of pairs: Maleki et al., "Scaling Distributed Training with Adaptive Summation" (2020), arXiv:2006.02924, the
operator of section 3 and its recursive application. The paper takes dot products per layer, this module per tensor.

Each rank holds one slice of every rank's gradients and walks the whole tree for it; a level needs one small all-reduce
of dot products. In a level with an odd number of vectors the last one passes through, so any number of ranks works. Dot
products and combinations are computed in float64 and rounded to the tensors' dtype once per level.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.engine import Engine
from farandole.native import core
from farandole.runtime.lanes.packing import pack, scratch, unpack


def allreduce(engine: Engine, arrays: Sequence[Array], dtype: DType, factor: float = 1.0) -> None:
    """Combine in place, each array with its counterparts, and multiply by ``factor``. Collective; float dtypes only."""
    total, size, member = sum(a.count for a in arrays), engine.group.size, engine.group.rank
    if not total:
        return
    slices = [total // size + (r < total % size) for r in range(size)]
    start, mine = sum(slices[:member]), slices[member]
    packed = scratch(dtype, total)
    pack(arrays, packed.address)
    held = scratch(dtype, mine * size)
    engine.alltoall(packed, slices, held, [mine] * size)
    tree = _Tree(engine, held, mine, _pieces(arrays, start, mine), len(arrays))
    vectors = list(range(size))
    while len(vectors) > 1:
        vectors = tree.combine(vectors, factor if len(vectors) == 2 else 1.0)
    engine.allgather(held.slice(0, mine), packed, slices)
    unpack(packed.address, arrays)


@final
@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of tensor ``tensor`` that lies in this rank's slice."""

    tensor: int
    start: int
    count: int


@final
class _Tree:
    """Tree of pairs over this rank's slice of every rank's vector, in ``held``; results overwrite the left vector."""

    def __init__(self, engine: Engine, held: Array, stride: int, pieces: Sequence[_Piece], tensors: int) -> None:
        self._engine, self._held, self._stride, self._pieces, self._tensors = engine, held, stride, pieces, tensors

    def combine(self, vectors: Sequence[int], factor: float) -> list[int]:
        """Combine the pairs of one level; returns the remaining vectors."""
        pairs = list(zip(vectors[::2], vectors[1::2], strict=False))
        dots = (ctypes.c_double * (3 * len(pairs) * self._tensors))()
        for p, (a, b) in enumerate(pairs):
            for piece in self._pieces:
                at = 3 * (p * self._tensors + piece.tensor)
                dots[at : at + 3] = list(
                    core.adasum_dots(
                        self._address(a, piece), self._address(b, piece), piece.count, int(self._held.dtype)
                    )
                )
        self._engine.allreduce(Array(ctypes.addressof(dots), len(dots), DType.FLOAT64, dots), Reduction(ReduceOp.SUM))
        for p, (a, b) in enumerate(pairs):
            for piece in self._pieces:
                at = 3 * (p * self._tensors + piece.tensor)
                ca, cb = coefficients(*dots[at : at + 3])
                left = self._address(a, piece)
                core.adasum_combine(
                    left, self._address(b, piece), left, piece.count, int(self._held.dtype), factor * ca, factor * cb
                )
        return list(vectors[::2])

    def _address(self, vector: int, piece: _Piece) -> int:
        return self._held.slice(vector * self._stride + piece.start, piece.count).address


def coefficients(aa: float, ab: float, bb: float) -> tuple[float, float]:
    """Factors of ``a`` and ``b`` in their sum, from the dot products; a zero vector leaves the other unchanged."""
    return (1.0 - ab / (2.0 * aa) if aa else 1.0), (1.0 - ab / (2.0 * bb) if bb else 1.0)


def _pieces(arrays: Sequence[Array], start: int, count: int) -> list[_Piece]:
    """Cut the slice of ``count`` elements from ``start`` of the concatenated arrays at their borders."""
    pieces, begin = [], 0
    for tensor, array in enumerate(arrays):
        low, high = max(begin, start), min(begin + array.count, start + count)
        if low < high:
            pieces.append(_Piece(tensor, low - start, high - low))
        begin += array.count
    return pieces
