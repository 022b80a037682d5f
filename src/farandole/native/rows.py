"""Rows of a batch, read by one call without the GIL; by ctypes, and not through the module: see native/rows.hpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from farandole.native import core

_read = ctypes.CDLL(core.__file__).farandole_read_rows
_read.restype = ctypes.c_size_t
_read.argtypes = (ctypes.c_size_t, *[ctypes.c_void_p] * 3, ctypes.c_size_t, ctypes.c_void_p)


def read_rows(fds: Sequence[int], offsets: Sequence[int], addresses: Sequence[int], nbytes: int) -> list[int]:
    """Read rows of ``nbytes`` bytes, each from a descriptor and an offset to an address.

    Returns the numbers of the rows that could not be read in full. Raises ``ValueError`` for lists of other lengths.
    """
    rows = len(fds)
    if len(offsets) != rows or len(addresses) != rows:
        raise ValueError(
            f"each row needs a descriptor, an offset and an address: {rows}, {len(offsets)}, {len(addresses)}"
        )
    failed = (ctypes.c_size_t * rows)()
    places = (ctypes.c_int64 * rows)(*offsets)
    found = _read(rows, (ctypes.c_int * rows)(*fds), places, (ctypes.c_size_t * rows)(*addresses), nbytes, failed)
    return failed[:found]
