"""Memory of batches, reused when no array refers to it any more: samples are copied into it in any order.

    memory = BatchMemory()
    batch = SampleRows(memory, [17, 4])       # the numbers of its samples
    batch.put(1, (image, 3))                  # any thread
    batch.put(0, (other, 5))
    images, labels = batch.collated()         # arrays of 2 rows; they stay right as long as somebody has them

A sample is an array, a number, text or bytes, or a dict, tuple or list of them. Arrays and numbers become arrays with
one row per sample, everything else a list. A ``MaskedArray`` stays one.
"""

# Threads. Threads of a pool put rows, each a different one; the first lays out the memory, under ``SampleRows._lock``.
# The thread that drops the last reference returns the memory, perhaps in the middle of a garbage collection: this is
# one ``deque.append``, which needs no lock.
#
# NumPy lets a view refer to the outermost array that has the same memory and is no view itself. The ``root`` is over a
# mapping and thus the outermost: it lives as long as any view of it, or any tensor made of a view.

from __future__ import annotations

import math
import mmap
import threading
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np

from farandole.errors import DataError

ALIGNMENT = 64
KEPT = 8
"""Mappings of one size that are kept for later batches; a loop that keeps batches uses more."""


@final
class BatchMemory:
    """Mappings that are handed out as arrays of bytes, and are returned when no array refers to them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._free: defaultdict[int, deque[mmap.mmap]] = defaultdict(lambda: deque(maxlen=kept))
        self.allocated = 0
        """Number of mappings made so far."""

    def allocate(self, nbytes: int) -> Any:
        """Array of at least ``nbytes`` bytes, with undefined content."""
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        free = self._free[size]
        try:
            mapping = free.pop()
        except IndexError:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.allocated += 1
        root = np.frombuffer(mapping, np.uint8)
        weakref.finalize(root, free.append, mapping).atexit = False
        return root


class _Part(ABC):
    """Part of a sample, and its column in a batch."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def sizes(self) -> list[int]:
        """Bytes of each array of one sample."""
        return []

    @abstractmethod
    def column(self, rows: int, pieces: Iterator[Any]) -> Any:
        """Empty column of ``rows``; arrays of bytes for it come from ``pieces``."""

    @abstractmethod
    def put(self, column: Any, row: int, value: Any) -> None:
        """Copy a sample's part into its row; raises ``_UnequalError`` if it has another form."""

    def arrays(self, column: Any, row: int | slice) -> list[Any] | None:
        """Arrays of the row, to read into; None if part of it is no array."""
        return None

    def collated(self, column: Any) -> Any:
        """The part of the finished batch."""
        return column


@final
class _UnequalError(Exception):
    """A sample has another form than the first one of its batch."""

    def __init__(self, path: str, first: str, this: str) -> None:
        super().__init__(path, first, this)
        self.path, self.first, self.this = path, first, this


_NUMBERS: dict[type, Any] = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)}


@final
class _ArrayPart(_Part):
    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self.shape: tuple[int, ...] = np.shape(value)
        self.dtype: np.dtype[Any] = _NUMBERS.get(type(value)) or np.asarray(value).dtype
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    @property
    def sizes(self) -> list[int]:
        return [self.nbytes]

    def column(self, rows: int, pieces: Iterator[Any]) -> Any:
        return next(pieces)[: rows * self.nbytes].view(self.dtype).reshape(rows, *self.shape)

    def put(self, column: Any, row: int, value: Any) -> None:
        array = value if type(value) is np.ndarray else np.asarray(value, _NUMBERS.get(type(value)))
        if array.shape != self.shape or array.dtype != self.dtype:
            raise _UnequalError(self.path, f"{self.dtype} {self.shape}", f"{array.dtype} {array.shape}")
        column[row] = array

    def arrays(self, column: Any, row: int | slice) -> list[Any] | None:
        return [column[row, ...]]


@final
class _MaskedPart(_Part):
    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self._data = _ArrayPart(path, value.data)
        self._mask = _ArrayPart(path, np.ma.getmaskarray(value))

    @property
    def sizes(self) -> list[int]:
        return [self._data.nbytes, self._mask.nbytes]

    def column(self, rows: int, pieces: Iterator[Any]) -> Any:
        return self._data.column(rows, pieces), self._mask.column(rows, pieces)

    def put(self, column: Any, row: int, value: Any) -> None:
        self._data.put(column[0], row, np.ma.getdata(value))
        self._mask.put(column[1], row, np.ma.getmaskarray(value))

    def collated(self, column: Any) -> Any:
        return np.ma.MaskedArray(column[0], column[1])


@final
class _ListPart(_Part):
    def column(self, rows: int, pieces: Iterator[Any]) -> Any:
        return [None] * rows

    def put(self, column: Any, row: int, value: Any) -> None:
        column[row] = value.copy() if isinstance(value, np.ndarray) else value  # it may be memory of a decode process


@final
class _NestedPart(_Part):
    """Dict, tuple or list; ``keys`` are the keys or indices of its parts."""

    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self._kind = dict if isinstance(value, Mapping) else type(value)
        self._keys = self._keys_of(value)
        self._parts = [part_of(value[key], f"{path}[{key!r}]") for key in self._keys]

    def _keys_of(self, value: Any) -> Any:
        return tuple(value) if self._kind is dict else range(len(value))

    @property
    def sizes(self) -> list[int]:
        return [size for part in self._parts for size in part.sizes]

    def column(self, rows: int, pieces: Iterator[Any]) -> Any:
        return [part.column(rows, pieces) for part in self._parts]

    def put(self, column: Any, row: int, value: Any) -> None:
        if not isinstance(value, Mapping if self._kind is dict else self._kind):
            raise _UnequalError(self.path, self._kind.__name__, type(value).__name__)
        if len(value) != len(self._keys) or (self._kind is dict and value.keys() != {*self._keys}):
            raise _UnequalError(self.path, f"{[*self._keys]}", f"{[*self._keys_of(value)]}")
        for part, inner, key in zip(self._parts, column, self._keys, strict=True):
            part.put(inner, row, value[key])

    def arrays(self, column: Any, row: int | slice) -> list[Any] | None:
        found = [part.arrays(inner, row) for part, inner in zip(self._parts, column, strict=True)]
        return None if None in found else [array for each in found for array in each or ()]

    def collated(self, column: Any) -> Any:
        found = [part.collated(inner) for part, inner in zip(self._parts, column, strict=True)]
        if self._kind is dict:
            return dict(zip(self._keys, found, strict=True))
        make = getattr(self._kind, "_make", self._kind)
        return make(found)


def part_of(value: Any, path: str = "") -> _Part:
    """Form of a sample, or of its part at ``path``."""
    if isinstance(value, np.ma.MaskedArray):
        return _MaskedPart(path, value)
    if isinstance(value, (Mapping, tuple, list)):
        return _NestedPart(path, value)
    if isinstance(value, (bool, int, float, complex)):
        return _ArrayPart(path, value)
    dtype = np.asarray(value).dtype if hasattr(value, "__array__") else np.dtype(object)
    return _ListPart(path) if dtype.hasobject or dtype.kind in "US" else _ArrayPart(path, value)


@final
class SampleRows:
    """Batch that is being loaded: a row for each sample of ``indices``."""

    def __init__(self, memory: BatchMemory, indices: Sequence[int]) -> None:
        self.indices = indices
        self._memory, self._lock = memory, threading.Lock()
        self._first = 0
        self._part: _Part | None = None
        self._column: Any = None

    def put(self, row: int, sample: Any) -> None:
        """Copy a sample into its row; raises ``DataError`` if its form differs from the first of this batch."""
        if self._part is None:
            with self._lock:
                if self._part is None:
                    self._lay_out(row, part_of(sample))
        assert self._part is not None
        try:
            self._part.put(self._column, row, sample)
        except _UnequalError as error:
            raise DataError(
                f"samples {self.indices[self._first]} and {self.indices[row]} of one batch differ"
                f"{error.path and f' in {error.path}'}: {error.first} and {error.this}. A batch has one form: bring "
                "them to it in decode=, or by augment=Crop((HEIGHT, WIDTH)), or take batch_size=1"
            ) from None

    def arrays(self, row: int) -> list[Any] | None:
        """Arrays and numbers of a row, in the order of a sample, to read into; None if that is impossible."""
        return None if self._part is None else self._part.arrays(self._column, row)

    @property
    def form(self) -> Any:
        """Form of the samples, for ``lay_out_as`` of another batch."""
        return self._part

    def lay_out_as(self, form: Any) -> list[Any] | None:
        """Lay out memory for samples of a known form; returns the columns, or None if the batch has another form."""
        with self._lock:
            if self._part is None:
                self._lay_out(0, form)
        return self._part.arrays(self._column, slice(None)) if self._part is form else None

    def forget_form(self) -> None:
        """Undo ``lay_out_as``, before any row is put: the samples may have another form."""
        self._part = self._column = None

    def collated(self) -> Any:
        """The batch, when all rows are loaded; this object then drops its reference."""
        part, column, self._column = self._part, self._column, None
        assert part is not None
        return part.collated(column)

    def _lay_out(self, row: int, part: _Part) -> None:
        rows = len(self.indices)
        ends = [*accumulate(-(-size * rows // ALIGNMENT) * ALIGNMENT for size in part.sizes)]
        root: Any = self._memory.allocate(ends[-1]) if ends else None
        pieces = (root[begin:end] for begin, end in pairwise([0, *ends]))
        self._first, self._column = row, part.column(rows, pieces)
        self._part = part  # last: other threads read it without the lock
