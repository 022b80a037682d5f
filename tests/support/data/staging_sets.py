"""Data sets out of nothing for tests of pieces and boards: manifests without files, of every kind of field."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from farandole.data.storage.fields import Field
from farandole.data.storage.listing import FileEntry
from farandole.data.storage.manifest import Manifest


def manifest_of(sizes: Sequence[int], *fields: Field) -> Manifest:
    """Manifest of files of these sizes, whose samples are the files where no field is given."""
    entries = [FileEntry(f"/set/{number:04}.bin", size, number + 1) for number, size in enumerate(sizes)]
    return Manifest.of("raw", "/set", entries, fields or [Field.whole_files(sizes)])


@st.composite
def regular_fields(draw: st.DrawFn, sizes: Sequence[int]) -> Field:
    """Blocks at a stride, which lie within their files; some share their bytes, some are empty."""
    files, counts, bases, strides, lengths = [], [], [], [], []
    for file in draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6)):
        base = draw(st.integers(0, sizes[file]))
        length = draw(st.integers(0, sizes[file] - base))
        stride = draw(st.sampled_from([0, length, length + 7]))
        most = 5 if stride == 0 else 1 + (sizes[file] - base - length) // stride
        counts.append(draw(st.integers(0, min(most, 50))))
        files.append(file)
        bases.append(base)
        strides.append(stride)
        lengths.append(length)
    return Field.regular(files, counts, bases, strides, lengths)


@st.composite
def listed_fields(draw: st.DrawFn, sizes: Sequence[int]) -> Field:
    """Samples that say where they lie, in any order."""
    files = draw(st.lists(st.integers(0, len(sizes) - 1), max_size=6))
    counts = [draw(st.integers(0, 8)) for _ in files]
    offsets, lengths = [], []
    for file, count in zip(files, counts, strict=True):
        for _ in range(count):
            offsets.append(draw(st.integers(0, sizes[file])))
            lengths.append(draw(st.integers(0, sizes[file] - offsets[-1])))
    return Field.listed(files, counts, offsets, lengths)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests of a few files, some of them empty, some larger than a piece."""
    sizes = draw(st.lists(st.one_of(st.integers(0, 3000), st.integers(0, 600_000)), min_size=1, max_size=8))
    kinds = st.one_of(st.just(Field.whole_files(sizes)), regular_fields(sizes), listed_fields(sizes))
    return manifest_of(sizes, draw(kinds))


def brute_bounds(places: np.ndarray, bounds: np.ndarray) -> list[int]:
    """Number of samples that begin before each bound; all of them at the last one."""
    return [int((places < bound).sum()) for bound in bounds[:-1]] + [len(places)]
