"""Keyed hashing of whole arrays: one number in, one 64-bit number out, the same on every machine.

mix(numpy.arange(4, dtype=numpy.uint64))     # the finalizer of MurmurHash3, a bijection of 64-bit numbers
key_of("node7", 3)                           # a key from words and numbers
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]

_FIRST: Final = np.uint64(0xFF51AFD7ED558CCD)
_SECOND: Final = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT: Final = np.uint64(33)


def mix(values: UInts) -> UInts:
    """Spread the bits of each value over all 64 bits: fmix64 of MurmurHash3 (Appleby). ``values`` stay unchanged."""
    mixed = values ^ (values >> _SHIFT)
    mixed *= _FIRST
    mixed ^= mixed >> _SHIFT
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFT
    return mixed


def key_of(*parts: str | int) -> int:
    """Key below 2**64 from words and numbers of any size."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
