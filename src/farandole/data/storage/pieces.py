"""``Pieces``: division of a data set into the units that are staged. Pure.

    pieces = Pieces.of(manifest)
    pieces.sizes                        # bytes of each
    pieces.extents(0)                   # [(file, offset, nbytes), ...]
    pieces.of_samples(np.arange(64))    # piece of each sample

The concatenated files are a line of bytes. Large files are cut where samples begin, into pieces of 64 MiB at most;
small files are bundled to 4 MiB at least. A piece with a part of a file holds nothing of another file.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from typing import final

import numpy as np
import numpy.typing as npt

from farandole.data.storage.fields import Field, Integers
from farandole.data.storage.manifest import Manifest

MOST_BYTES = 64 * 2**20
LEAST_BYTES, LEAST_CUT = 4 * 2**20, 2**19
"""Least bytes of a bundle of small files, and least limit for a part of a large one."""
PIECES_IN_CACHE = 256
"""Pieces that fit into a small cache: the room that is kept free for the next pieces is then a small part of it."""
LEAST_BLOCK, MOST_BLOCK = 2**15, 2**18
"""Bytes that share one checksum, at least and at most."""

MOST_KNOWN = 256
"""Pieces whose blocks are kept in memory."""


def most_bytes(manifest: Manifest, room: int, least: int = LEAST_CUT, pieces: int = PIECES_IN_CACHE) -> int:
    """Most bytes of a piece in caches of ``room`` bytes; an index with checksums has them for the largest pieces."""
    return MOST_BYTES if len(manifest.sums) else max(least, min(MOST_BYTES, room // pieces))


@final
class Pieces:
    """Pieces of the files of a manifest; ``bounds`` are their ends on the line of all bytes, with 0 first."""

    def __init__(self, manifest: Manifest, bounds: npt.ArrayLike) -> None:
        self._manifest = manifest
        self.bounds: Integers = np.asarray(bounds, np.int64)
        self.begins: Integers = np.concatenate([[0], np.cumsum(manifest.sizes)]).astype(np.int64)
        """Place of the first byte of each file on the line, and the end of the last file."""
        self._blocks: dict[int, Integers] = {}
        self._by_file: dict[Field, tuple[Integers, Integers]] = {}

    @classmethod
    def of(cls, manifest: Manifest, most: int = MOST_BYTES, least: int = LEAST_BYTES) -> Pieces:
        """Cut the files of a manifest into pieces of ``most`` bytes at most, or bundles of ``least`` at least.

        A piece is larger if one sample is larger.
        """
        least = min(least, most)
        sizes, begins = manifest.sizes, np.concatenate([[0], np.cumsum(manifest.sizes)])
        cuts = _cuts(manifest, most)
        bounds, begun = [0], 0
        for file in range(len(sizes)):
            begin, end = int(begins[file]), int(begins[file + 1])
            if end - begin >= least:  # this file has pieces of its own
                if bounds[-1] < begin:
                    bounds.append(begin)
                bounds += _cut(begin, end, cuts.get(file), most)
                begun = end
            elif end - begun >= least:
                bounds.append(end)
                begun = end
        if bounds[-1] < begins[-1] or len(bounds) == 1:
            bounds.append(int(begins[-1]))
        return cls(manifest, bounds)

    @property
    def sizes(self) -> Integers:
        """Bytes of each piece."""
        return np.diff(self.bounds)

    @property
    def least_room(self) -> int:
        """Bytes of the smallest cache with which a job starts: two pieces, or all of the data."""
        return int(min(2 * self.sizes.max(initial=0), self.sizes.sum()))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def extents(self, piece: int) -> list[tuple[int, int, int]]:
        """File, offset in it and length of each part of a piece, in the order of its bytes; empty files have none."""
        begin, end = int(self.bounds[piece]), int(self.bounds[piece + 1])
        file = int(np.searchsorted(self.begins, begin, side="right")) - 1
        found = []
        while begin < end:
            stop = min(end, int(self.begins[file + 1]))
            if stop > begin:
                found.append((file, begin - int(self.begins[file]), stop - begin))
            begin, file = max(begin, stop), file + 1
        return found

    def of_bytes(self, files: npt.ArrayLike, offsets: npt.ArrayLike) -> Integers:
        """Piece that holds each of these bytes."""
        places = self.begins[np.asarray(files, np.int64)] + np.asarray(offsets, np.int64)
        found = np.searchsorted(self.bounds, places, side="right") - 1
        return np.minimum(found, len(self) - 1).astype(np.int64)

    def of_samples(self, samples: npt.ArrayLike) -> Integers:
        """Piece in which the first part of each of these samples begins."""
        files, offsets, _ = self._manifest.fields[0].locate(samples)
        return self.of_bytes(files, offsets)

    def blocks(self, piece: int) -> Integers:
        """Bounds of the blocks of a piece, each with a checksum of its own; 0 and the size of the piece are included.

        Blocks have 32 to 256 KiB and are cut where samples begin: to read and verify a sample takes hardly more bytes.
        """
        found = self._blocks.get(piece)
        if found is None:
            if len(self._blocks) >= MOST_KNOWN:
                self._blocks = {}  # all, because a search for the oldest would race with other threads
            found = self._blocks[piece] = self._block_bounds(piece)
        return found

    def _block_bounds(self, piece: int) -> Integers:
        size = int(self.sizes[piece])
        starts, place = [np.zeros(1, np.int64)], 0
        for file, offset, nbytes in self.extents(piece):
            starts += [found - offset + place for found in self._starts(file, offset, offset + nbytes)]
            place += nbytes
        every = np.unique(np.concatenate(starts))
        _, first = np.unique(every // LEAST_BLOCK, return_index=True)
        bounds = np.append(every[first], size)
        gaps = [np.arange(begin, end, MOST_BLOCK) for begin, end in itertools.pairwise(bounds.tolist())]
        return np.append(np.concatenate(gaps), size).astype(np.int64) if gaps else np.array([0, size], np.int64)

    def _starts(self, file: int, begin: int, end: int) -> Iterator[Integers]:
        """Offsets in a part of a file at which samples begin, field by field."""
        for field in self._manifest.fields:
            for block in self._blocks_of(field, file):
                cuts = field.cuts(block, LEAST_BLOCK)
                yield cuts[(cuts >= begin) & (cuts < end)]

    def _blocks_of(self, field: Field, file: int) -> list[int]:
        """Blocks of a field that lie in a file; the look-up table is made once for all files."""
        if field not in self._by_file:
            order = np.argsort(field.files, kind="stable")
            self._by_file[field] = order, field.files[order]
        order, files = self._by_file[field]
        begin, end = np.searchsorted(files, [file, file + 1])
        return [int(each) for each in order[begin:end]]

    def sample_bounds(self) -> tuple[Integers, Integers | None]:
        """Number of samples before each piece, and the samples by piece; ``None`` if they are in that order already."""
        count, field = self._manifest.samples, self._manifest.fields[0]
        if field.is_sorted:
            low, high = np.zeros(len(self.bounds), np.int64), np.full(len(self.bounds), count, np.int64)
            while (low < high).any():  # bisection of all bounds at once: no list of all samples is made
                middle = (low + high) // 2
                files, offsets, _ = field.locate(np.minimum(middle, count - 1))
                is_before = (self.begins[files] + offsets < self.bounds) & (middle < high)
                low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, np.minimum(middle, high))
            low[-1] = count
            return low, None
        pieces = self.of_samples(np.arange(count))
        bounds = np.concatenate([[0], np.cumsum(np.bincount(pieces, minlength=len(self)))])
        return bounds.astype(np.int64), np.argsort(pieces, kind="stable").astype(np.int64)

    def needed_by(self, sample: int) -> list[int]:
        """All pieces that hold bytes of a sample, in ascending order."""
        found: set[int] = set()
        for file, offset, nbytes in self._manifest.extents(sample):
            found |= set(self.spanned(file, offset, nbytes))
        return sorted(found)

    def spanned(self, file: int, offset: int, nbytes: int) -> range:
        """Pieces that hold bytes of a part of a file."""
        place = int(self.begins[file]) + offset
        first = bisect.bisect_right(self.bounds, place) - 1  # faster than NumPy's for one value
        if first + 1 < len(self.bounds) and place + nbytes <= self.bounds[first + 1]:
            return range(first, first + 1)
        last = bisect.bisect_right(self.bounds, place + max(nbytes, 1) - 1) - 1
        return range(min(first, len(self) - 1), min(last, len(self) - 1) + 1)


def _cuts(manifest: Manifest, most: int) -> dict[int, Integers]:
    """Offsets at which samples begin, ascending, of files that are larger than a piece."""
    found: dict[int, list[Integers]] = {}
    for field in manifest.fields:
        for block in np.flatnonzero(manifest.sizes[field.files] > most):
            found.setdefault(int(field.files[block]), []).append(field.cuts(int(block), most))
    return {file: np.unique(np.concatenate(cuts)) for file, cuts in found.items()}


def _cut(begin: int, end: int, starts: Integers | None, most: int) -> list[int]:
    """Ends of the pieces of a file that lies from ``begin`` to ``end``: as large as allowed, cut at ``starts``."""
    bounds, at = [], begin
    while end - at > most:
        ideal, cut = at + most, at + most
        if starts is not None and len(starts):
            place = int(np.searchsorted(starts, ideal - begin, side="right")) - 1
            fitting = begin + int(starts[place]) if place >= 0 else at
            if fitting <= at:  # one sample is larger than a piece: it ends where the next one begins
                following = int(np.searchsorted(starts, at - begin, side="right"))
                fitting = begin + int(starts[following]) if following < len(starts) else end
            cut = min(fitting, end)
        bounds.append(cut)
        at = cut
    return bounds if bounds and bounds[-1] == end else [*bounds, end]
