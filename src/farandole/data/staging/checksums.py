"""Checksums of a piece: the xxh3_64 of each block, and the xxh3_64 of all these values.

    sums = Checksums(pieces.blocks(3), values)
    sums.verify(0, 4, view)                         # blocks 0 to 3, one after the other in memory

They are computed from the bytes that shared storage returned, and travel with the piece: a bit flip on the network, in
the memory of another host or in its cache is detected where the block is read.
"""

from __future__ import annotations

import bisect
from typing import final

import numpy as np
import numpy.typing as npt
import xxhash

from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Integers
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces


@final
class Checksums:
    """Checksums of the blocks of a piece; ``bounds`` are the offsets of the blocks in the piece."""

    def __init__(self, bounds: Integers, values: npt.NDArray[np.uint64]) -> None:
        self.bounds, self.values = bounds, values
        self.places: list[int] = bounds.tolist()
        """The bounds as a list, which is faster than an array for single values."""

    @classmethod
    def unknown(cls, bounds: Integers) -> Checksums:
        """Placeholder for the checksums of a piece that is not read yet."""
        return cls(bounds, np.zeros(len(bounds) - 1, np.uint64))

    def __len__(self) -> int:
        return len(self.values)

    def covering(self, begin: int, end: int) -> tuple[int, int]:
        """First block, and the block after the last, of the blocks that cover bytes ``begin`` to ``end``."""
        places = self.places
        first = min(bisect.bisect_right(places, begin) - 1, len(places) - 2)
        return first, max(bisect.bisect_left(places, end), first + 1)

    def nbytes(self, first: int, last: int) -> int:
        """Bytes of the blocks from ``first`` to before ``last``."""
        return self.places[last] - self.places[first]

    def note(self, first: int, last: int, data: memoryview) -> None:
        """Compute the checksums of blocks from their bytes."""
        for block in range(first, last):
            self.values[block] = self._value(block, first, data)

    def verify(self, first: int, last: int, data: memoryview) -> bool:
        """True if ``data`` matches the checksums of the blocks."""
        if last == first + 1:  # most samples are one block
            return int(self.values[first]) == self._value(first, first, data)
        return all(int(self.values[block]) == self._value(block, first, data) for block in range(first, last))

    def whole(self) -> int:
        """Checksum of the piece: the checksum of all values."""
        return int(xxhash.xxh3_64_intdigest(self.values.tobytes()))

    def runs(self, nbytes: int) -> list[tuple[int, int]]:
        """Runs of blocks of about ``nbytes`` each, which together make up the piece."""
        bounds, runs, first = self.bounds, [], 0
        while first < len(self):
            last = int(np.searchsorted(bounds, bounds[first] + nbytes, side="right")) - 1
            last = min(max(last, first + 1), len(self))
            runs.append((first, last))
            first = last
        return runs

    def encode(self) -> bytes:
        """Serialize for a file or the network, followed by a checksum of the values."""
        values = self.values.tobytes()
        return values + xxhash.xxh3_64_digest(values)

    @classmethod
    def decode(cls, bounds: Integers, text: bytes, whole: int | None = None) -> Checksums | None:
        """Decode checksums; ``None`` if ``text`` is damaged, is of other blocks, or does not match ``whole``."""
        if len(text) != 8 * len(bounds) or xxhash.xxh3_64_digest(text[:-8]) != text[-8:]:
            return None
        found = cls(bounds, np.frombuffer(text[:-8], np.uint64).copy())
        return found if whole is None or whole == found.whole() else None

    def _value(self, block: int, first: int, data: memoryview) -> int:
        places = self.places
        begin = places[first]
        return xxhash.xxh3_64_intdigest(data[places[block] - begin : places[block + 1] - begin])


def checksums_of(manifest: Manifest, pieces: Pieces, store: ByteStore) -> npt.NDArray[np.uint64]:
    """Checksum of each piece of a data set; reads all of the data."""
    values = np.zeros(len(pieces), np.uint64)
    for piece in range(len(pieces)):
        checksums = Checksums.unknown(pieces.blocks(piece))
        data, at = memoryview(bytearray(int(pieces.sizes[piece]))), 0
        for file, offset, nbytes in pieces.extents(piece):
            store.read_into(manifest.paths[file], offset, data[at : at + nbytes])
            at += nbytes
        checksums.note(0, len(checksums), data)
        values[piece] = checksums.whole()
    return values
