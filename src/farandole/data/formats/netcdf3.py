"""Header of a NetCDF-3 file (CDF-1, CDF-2 and CDF-5): its variables, and where their numbers lie.

    read_arrays(store, "/lustre/set/era.nc")["t2m"].base                   # offset of the first number

Layout: "NetCDF Classic Format Specification" (Unidata) and PnetCDF's of CDF-5. Rows of record variables have the stride
of one record, whose parts are padded to four bytes unless there is only one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import numpy as np

from farandole.data.formats.stored_array import StoredArray
from farandole.data.storage.byte_store import ByteStore
from farandole.errors import DataError

MAGIC = {b"CDF\x01": 1, b"CDF\x02": 2, b"CDF\x05": 5}
DIMENSIONS, VARIABLES, ATTRIBUTES = 10, 11, 12
TYPES = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8"}
FIRST_READ = 64 * 1024


@final
class _Variable(NamedTuple):
    """One variable of the header: the numbers of its dimensions, and the offset of its first number."""

    name: str
    dims: list[int]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int


@final
class _Cursor:
    """Reads the big-endian items of a header in sequence; counts and offsets are wider in later versions."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size, self.at = data, size, 4
        self._count, self._offset = {1: (4, 4), 2: (4, 8), 5: (8, 8)}[MAGIC[data[:4]]]

    def read(self, nbytes: int) -> bytes:
        if not 0 <= nbytes <= self._size:
            raise ValueError(f"{nbytes} bytes at byte {self.at} of its header")
        if self.at + nbytes > len(self._data):
            raise EOFError
        self.at += nbytes
        return self._data[self.at - nbytes : self.at]

    def integer(self, nbytes: int = 4) -> int:
        return int.from_bytes(self.read(nbytes), "big", signed=True)

    def count(self) -> int:
        return self.integer(self._count)

    def padded(self, nbytes: int) -> bytes:
        found = self.read(nbytes)
        self.read(-nbytes % 4)
        return found

    def name(self) -> str:
        return self.padded(self.count()).split(b"\0")[0].decode("utf-8", "replace")

    def dtype(self) -> np.dtype[Any]:
        number = self.integer()
        if number not in TYPES:
            raise ValueError(f"type {number} at byte {self.at} of its header")
        return np.dtype(TYPES[number])

    def listed(self, tag: int) -> range:
        """Items of a list of this kind; none if the list is absent."""
        found, count = self.integer(), self.count()
        if (found, count) != (0, 0) and (found != tag or not 0 <= count <= self._size):
            raise ValueError(f"a list of kind {found} with {count} items at byte {self.at} of its header")
        return range(count)

    def attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in self.listed(ATTRIBUTES):
            name, dtype, count = self.name(), self.dtype(), self.count()
            data = self.padded(count * dtype.itemsize)
            is_text = dtype.kind == "S"
            found[name] = data.rstrip(b"\0").decode("utf-8", "replace") if is_text else np.frombuffer(data, dtype)
        return found

    def variable(self) -> _Variable:
        name, dims = self.name(), [self.count() for _ in range(self.count())]
        attributes, dtype = self.attributes(), self.dtype()
        self.count()  # its size, which overflows for large ones: the dimensions are used
        return _Variable(name, dims, attributes, dtype, self.integer(self._offset))


def is_netcdf3(magic: bytes | bytearray) -> bool:
    """True for the first bytes of a NetCDF-3 file."""
    return bytes(magic[:4]) in MAGIC


def read_arrays(store: ByteStore, path: str) -> dict[str, StoredArray]:
    """Variables of a file; only its header is read.

    Raises ``DataError`` for a header that contradicts itself or the size of the file.
    """
    size = store.size(path)
    limit = min(size, FIRST_READ)
    while True:
        try:
            return _parsed(bytes(store.read(path, 0, limit)), size)
        except EOFError:
            if limit == size:
                raise DataError(f"{path} is no whole NetCDF-3 file: its header goes on beyond its end") from None
            limit = min(size, limit * 8)
        except ValueError as error:
            raise DataError(f"{path} is no sound NetCDF-3 file: {error}; copy it again") from error


def _parsed(data: bytes, size: int) -> dict[str, StoredArray]:
    cursor = _Cursor(data, size)
    records = cursor.count()
    dims = [(cursor.name(), cursor.count()) for _ in cursor.listed(DIMENSIONS)]
    cursor.attributes()
    variables = [cursor.variable() for _ in cursor.listed(VARIABLES)]
    unlimited = [number for number, (_, length) in enumerate(dims) if length == 0]
    for each in variables:
        if any(not 0 <= dim < len(dims) for dim in each.dims) or set(each.dims[1:]) & set(unlimited):
            raise ValueError(f"the dimensions of {each.name} are numbers {each.dims} of {len(dims)}")
    loose = [each for each in variables if set(each.dims[:1]) & set(unlimited)]
    parts = [math.prod(dims[dim][1] for dim in each.dims[1:]) * each.dtype.itemsize for each in loose]
    stride = parts[0] if len(parts) == 1 else sum(part + -part % 4 for part in parts)
    if records < 0:  # unknown when the header was written: count the records in the file
        records = (size - min((each.begin for each in loose), default=size)) // max(1, stride)
    arrays = {}
    for each in variables:
        shape = tuple(records if dim in unlimited else dims[dim][1] for dim in each.dims)
        names, own = tuple(dims[dim][0] for dim in each.dims), stride if set(each.dims[:1]) & set(unlimited) else 0
        arrays[each.name] = StoredArray(
            each.name, each.dtype, shape, each.begin, own, dims=names, attributes=each.attributes
        )
    _check_places(list(arrays.values()), cursor.at, size)
    return arrays


def _check_places(arrays: list[StoredArray], taken: int, size: int) -> None:
    """Raise ``ValueError`` if numbers would lie in the header, in another variable, or beyond the end of the file."""
    for array in sorted(arrays, key=lambda array: (array.stride > 0, array.base)):
        row = math.prod(array.shape[1:]) * array.dtype.itemsize
        nbytes = row if array.stride else math.prod(array.shape) * array.dtype.itemsize
        if array.base < taken and nbytes:
            raise ValueError(f"{array.name} begins at byte {array.base}, before the end of others at {taken}")
        end = array.base + nbytes + (array.stride * (array.shape[0] - 1) if array.stride else 0)
        if math.prod(array.shape) and end > size:
            raise ValueError(f"{array.name} ends at byte {end}, and the file at {size}: it is truncated")
        taken = max(taken, array.base + nbytes)
