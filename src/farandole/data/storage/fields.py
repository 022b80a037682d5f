"""``Field``: where one part of each sample lies among the bytes of files. Pure, columnar.

    rows = Field.regular(files=[0, 1], counts=[1000, 800], base=[128, 128], stride=[400, 400], nbytes=[400, 400])
    rows.locate(np.array([3, 1001]))            # files [0, 1], offsets [1328, 528], lengths [400, 400]

A block is a run of samples in one file. Its samples lie one after the other at a stride, or share their bytes (stride
0: a compressed chunk, a whole file), or have an offset each.
"""

from __future__ import annotations

import bisect
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.errors import UsageError

Integers: TypeAlias = npt.NDArray[np.int64]


@final
class Field:
    """Extents of one part of each sample. Block ``b`` holds the samples ``first[b]`` to ``first[b + 1]``.

    ``base``, ``stride`` and ``nbytes`` are per block, in bytes. If samples differ in length, ``offsets`` and ``sizes``
    per sample replace them.
    """

    COLUMNS = ("first", "files", "base", "stride", "nbytes", "offsets", "sizes")

    def __init__(
        self,
        first: npt.ArrayLike,
        files: npt.ArrayLike,
        base: npt.ArrayLike = (),
        stride: npt.ArrayLike = (),
        nbytes: npt.ArrayLike = (),
        offsets: npt.ArrayLike = (),
        sizes: npt.ArrayLike = (),
    ) -> None:
        self.first, self.files = _integers(first), _integers(files)
        self.base, self.stride, self.nbytes = _integers(base), _integers(stride), _integers(nbytes)
        self.offsets, self.sizes = _integers(offsets), _integers(sizes)
        blocks, samples = len(self.files), int(self.first[-1])
        per_block = {len(column) for column in (self.base, self.stride, self.nbytes)}
        if len(self.first) != blocks + 1 or not (per_block == {blocks} or self.is_listed):
            raise UsageError(f"a field of {blocks} blocks has columns of other lengths: {sorted(per_block)}")
        if self.is_listed and {len(self.offsets), len(self.sizes)} != {samples}:
            raise UsageError(f"a field of {samples} samples lists {len(self.offsets)} offsets, {len(self.sizes)} sizes")

    @property
    def is_listed(self) -> bool:
        """True if each sample has its own offset."""
        return not len(self.base)

    @property
    def is_sorted(self) -> bool:
        """True if samples lie in the order of their numbers, file after file."""
        counts = np.diff(self.first)
        full = counts > 0
        files = self.files[full]
        if (np.diff(files) < 0).any():
            return False
        if self.is_listed:
            of_sample = np.repeat(self.files, counts)
            return not ((np.diff(self.offsets) < 0) & (np.diff(of_sample) == 0)).any()
        base, stride = self.base[full], self.stride[full]
        lasts = base + (counts[full] - 1) * stride
        return not (stride < 0).any() and not ((base[1:] < lasts[:-1]) & (np.diff(files) == 0)).any()

    @classmethod
    def regular(
        cls,
        files: npt.ArrayLike,
        counts: npt.ArrayLike,
        base: npt.ArrayLike,
        stride: npt.ArrayLike,
        nbytes: npt.ArrayLike,
    ) -> Field:
        """Samples at a stride: ``counts[b]`` of ``nbytes[b]`` bytes each, from ``base[b]`` on."""
        return cls(_cumulated(counts), files, base, stride, nbytes)

    @classmethod
    def listed(cls, files: npt.ArrayLike, counts: npt.ArrayLike, offsets: npt.ArrayLike, sizes: npt.ArrayLike) -> Field:
        """Samples that each have an offset in their file and a length: ``counts[b]`` of them in block ``b``."""
        return cls(_cumulated(counts), files, offsets=offsets, sizes=sizes)

    @classmethod
    def whole_files(cls, file_sizes: npt.ArrayLike, counts: npt.ArrayLike = ()) -> Field:
        """Samples that need the whole of their file: ``counts`` of each file, by default one."""
        sizes = _integers(file_sizes)
        blocks = len(sizes)
        given = _integers(counts)
        return cls.regular(
            np.arange(blocks), given if len(given) else np.ones(blocks), np.zeros(blocks), np.zeros(blocks), sizes
        )

    def __len__(self) -> int:
        return int(self.first[-1])

    def block_of(self, samples: npt.ArrayLike) -> Integers:
        """Block of each sample."""
        return np.searchsorted(self.first, np.asarray(samples), side="right").astype(np.int64) - 1

    def locate(self, samples: npt.ArrayLike) -> tuple[Integers, Integers, Integers]:
        """File, offset and length of each of these samples."""
        wanted = _integers(samples)
        block = self.block_of(wanted)
        if self.is_listed:
            return self.files[block], self.offsets[wanted], self.sizes[wanted]
        within = wanted - self.first[block]
        return self.files[block], self.base[block] + within * self.stride[block], self.nbytes[block]

    def extent(self, sample: int) -> tuple[int, int, int]:
        """File, offset and length of one sample."""
        block = bisect.bisect_right(self.first, sample) - 1  # faster than NumPy's for one value
        file = int(self.files[block])
        if self.is_listed:
            return file, int(self.offsets[sample]), int(self.sizes[sample])
        within = sample - int(self.first[block])
        return file, int(self.base[block]) + within * int(self.stride[block]), int(self.nbytes[block])

    def columns(self) -> dict[str, Integers]:
        """Arrays by name, as a manifest stores them and the constructor takes them."""
        return {name: getattr(self, name) for name in self.COLUMNS}

    def cuts(self, block: int, limit: int) -> Integers:
        """Offsets in the file at which samples of a block begin: places to cut it into parts of ``limit`` bytes."""
        if self.is_listed:
            return self.offsets[self.first[block] : self.first[block + 1]]
        stride = int(self.stride[block])
        if stride <= 0:
            return self.base[block : block + 1]
        every = max(1, limit // stride) if stride < limit else 1
        count = int(self.first[block + 1] - self.first[block])
        # A cut in every thousandth part of the limit is fine enough, and millions of tiny samples cost no memory.
        every = max(1, every // 1000)
        starts: Integers = self.base[block] + np.arange(0, count, every, dtype=np.int64) * stride
        return starts


def _integers(column: Any) -> Integers:
    found: Integers = np.asarray(column, dtype=np.int64)
    return found


def _cumulated(counts: npt.ArrayLike) -> Integers:
    return np.concatenate([[0], np.cumsum(_integers(counts))]).astype(np.int64)
