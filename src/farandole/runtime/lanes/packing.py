"""Packing of arrays into one block of host memory, and unpacking.

pack([a, b], memory.address)
unpack(memory.address, [a, b])
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.native import core


def pack(arrays: Sequence[Array], address: int) -> None:
    """Copy the arrays, one after the other, to ``address``."""
    for array in arrays:
        core.copy(address, array.address, array.nbytes)
        address += array.nbytes


def unpack(address: int, arrays: Sequence[Array]) -> None:
    """Copy the arrays that ``pack`` wrote to ``address`` back."""
    for array in arrays:
        core.copy(array.address, address, array.nbytes)
        address += array.nbytes


def batches(arrays: Sequence[Array], limit_bytes: int) -> list[list[Array]]:
    """Split a list, in order, so that each part holds at most ``limit_bytes`` (or a single array)."""
    parts: list[list[Array]] = []
    room = 0
    for array in arrays:
        if not parts or array.nbytes > room:
            parts.append([])
            room = limit_bytes
        parts[-1].append(array)
        room -= array.nbytes
    return parts


def scratch(dtype: DType, count: int) -> Array:
    """Make a zeroed array in host memory, which the array keeps alive."""
    owner = ctypes.create_string_buffer(max(1, count * dtype.itemsize))
    return Array(ctypes.addressof(owner), count, dtype, owner)


def identity(dtype: DType, count: int, how: Reduction) -> Array:
    """Identity of a reduction, which a joined rank contributes without changing the result. Zeros for Adasum.

    The engine multiplies it by the prescale factor, like every contribution. A product with a factor, and an infinite
    factor, have no identity: ``agreement`` refuses these for joined ranks.
    """
    array = scratch(dtype, count)
    op, factor = how.op, 1.0 if dtype is DType.BOOL else how.prescale  # booleans are not multiplied
    if op is ReduceOp.ADASUM or (op in _OPPOSITE and factor == 0.0):  # factor 0: every contribution is zero
        return array
    if factor < 0.0:
        op = _OPPOSITE.get(op, op)
    core.fill_identity(array.address, count, int(dtype), int(op))
    return array


_OPPOSITE = {ReduceOp.MIN: ReduceOp.MAX, ReduceOp.MAX: ReduceOp.MIN}
"""Operations whose identities a negative factor exchanges."""
