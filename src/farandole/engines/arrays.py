"""Plain host memory, and splitting and copying of the arrays in it.

first, second = split(memory.array(DType.FLOAT32), [3, 4])
copy(second, first)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from farandole.collective import Array
from farandole.engines.engine import Memory
from farandole.native import core


def plain_memory(nbytes: int) -> Memory:
    """Allocate zeroed private memory."""
    owner = (ctypes.c_uint8 * max(1, nbytes))()
    return Memory(ctypes.addressof(owner), nbytes, owner)


def copy(target: Array, source: Array) -> None:
    """Copy all of ``source``; does nothing if it is the same memory."""
    if target.address != source.address:
        core.copy(target.address, source.address, source.nbytes)


def split(array: Array, counts: Sequence[int]) -> list[Array]:
    """Consecutive parts of ``counts`` elements."""
    parts, start = [], 0
    for count in counts:
        parts.append(array.slice(start, count))
        start += count
    return parts


def pieces(array: Array, limit_bytes: int) -> list[Array]:
    """Consecutive parts of at most ``limit_bytes``; one empty part of an empty array."""
    each = max(1, limit_bytes // array.dtype.itemsize)
    return [array.slice(start, min(each, array.count - start)) for start in range(0, max(1, array.count), each)]


def shares(count: int, parts: int, least: int) -> list[int]:
    """Divide ``count`` elements into equal shares, multiples of ``least``; the last ones are smaller or empty.

    >>> shares(100, 3, 16)
    [48, 48, 4]
    """
    each = -(-count // (parts * least)) * least
    return [max(0, min(each, count - part * each)) for part in range(parts)]
