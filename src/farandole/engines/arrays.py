"""Plain host memory and the arrays in it, as engines cut and copy them.

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
    """Zeroed memory that nobody else sees."""
    owner = (ctypes.c_uint8 * max(1, nbytes))()
    return Memory(ctypes.addressof(owner), nbytes, owner)


def copy(target: Array, source: Array) -> None:
    """Copy all of ``source``; nothing is done where it is the same memory."""
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
    """``count`` elements in equal shares, the last ones smaller or empty: multiples of ``least``.

    >>> shares(100, 3, 16)
    [48, 48, 4]
    """
    each = -(-count // (parts * least)) * least
    return [max(0, min(each, count - part * each)) for part in range(parts)]
