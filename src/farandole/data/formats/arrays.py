"""NumPy's ``.npy`` and ``.npz`` and MATLAB's ``.mat`` files. Nothing pickled is ever loaded.

    source = arrays("/lustre/crops/*.npy", per="file")                   # one array is one sample
    source = arrays("/lustre/set.npz", keys=["x", "y"])                  # rows of x and y
    source = arrays("/lustre/pavia.mat", keys="hyperspectral", along=2)

Values are as stored, in the byte order of the file (``native=True``: of this machine). ``.npy``, ``.npz`` and MATLAB's
7.3 (which is HDF5, with axes in MATLAB's order) are read by byte ranges; older ``.mat`` files by SciPy, whole.
"""

from __future__ import annotations

import ast
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np

from farandole.data.formats.chunk_codecs import Array
from farandole.data.formats.hdf5 import Hdf5Library, h5_file, is_hdf5, names_of, stored_array
from farandole.data.formats.reading import Index, ThreadCache, translated
from farandole.data.formats.source import Decode, Source, load_index
from farandole.data.formats.stored_array import (
    ArrayLayout,
    Keys,
    Options,
    StoredArray,
    array_source,
    chosen_keys,
    opened,
    row_of,
)
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.listing import FileEntry, Where, list_files
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

SUFFIXES = (".npy", ".npz", ".mat")
MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 20


def arrays(
    path: Where = "",
    keys: Keys = None,
    decode: Decode | None = None,
    *,
    along: int = 0,
    per: str = "sample",
    native: bool = False,
    index: Index = None,
    store: ByteStore | None = None,
) -> Source:
    """Samples of array files: rows along an axis of all files in the order of their paths; ``per="file"``: whole files.

    ``keys`` are names in ``.npz`` and ``.mat``; by default all arrays of a file, as a dict if there are several. Raises
    ``DataError`` with file and reason for pickled objects, references, and damaged bytes.
    """
    if index is not None:
        return opened(load_index(index, "arrays"), decode, store, MatLibrary)
    entries = list_files(path, SUFFIXES)
    reader, members = store or store_for(entries[0].path), []
    for number, entry in enumerate(entries):
        found = _arrays_of(reader, entry, number, keys)
        keys = tuple(found) if keys is None and len(found) > 1 else keys
        members.append((number, {key: found[key] for key in chosen_keys(keys, list(found), entry.path)}))
    options = Options(keys, along, per, native)
    return array_source("arrays", path, entries, members, options, MatLibrary, decode, store)


def _arrays_of(store: ByteStore, entry: FileEntry, number: int, keys: Keys) -> Mapping[str, StoredArray]:
    path = entry.path
    magic = bytes(store.read(path, 0, min(6, entry.size)))
    if magic == MAGIC:
        return {"": _npy(lambda count: bytes(store.read(path, 0, min(count, entry.size))), path, entry.size)}
    if magic.startswith(b"PK"):
        members = {
            name.removesuffix(".npy"): member
            for name, member in zip_members(store, path).items()
            if name.endswith(".npy")
        }
        asked = tuple(members) if keys is None else chosen_keys(keys, list(members), path)
        return {name: _zipped(store, path, name, members[name], number) for name in asked}
    if is_hdf5(store, path):
        with translated(path, "MATLAB 7.3"), h5_file(store, path) as file:
            names = [name for name in names_of(file) if not name.startswith("#")]
            asked = tuple(names) if keys is None else chosen_keys(keys, names, path)
            found = {name: stored_array(file, name, path, number) for name in asked}
        if empty := [name for name, each in found.items() if "MATLAB_empty" in each.attributes]:
            raise DataError(f"{path}: {empty[0]} is an empty array of MATLAB, which is not read: leave it out of keys=")
        return {name: each.turned() for name, each in found.items()}
    if path.endswith(".mat"):
        return {name: StoredArray(name, each.dtype, each.shape) for name, each in load_mat(store, path).items()}
    raise DataError(f"{path} is no .npy, .npz or .mat file: it begins with {magic!r}; check the path")


def _npy(first: Any, what: str, size: int) -> StoredArray:
    """The array of an ``.npy`` file of ``size`` bytes; ``first(n)`` returns its first ``n`` bytes."""
    head = first(12)
    if head[:6] != MAGIC or len(head) < 12 or head[6] not in (1, 2, 3):
        raise DataError(f"{what} is no .npy file of version 1, 2 or 3: it begins with {head[:8]!r}; copy it again")
    begin = 10 if head[6] == 1 else 12
    end = begin + int.from_bytes(head[8:begin], "little")
    try:
        text = first(min(end, LONGEST_HEADER))[begin:].decode("utf-8" if head[6] == 3 else "latin-1")
        told = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text.strip()))  # long integers, as Python 2 wrote them
        dtype = np.lib.format.descr_to_dtype(told["descr"])
        shape = tuple(int(each) for each in told["shape"])
        is_turned = bool(told["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(f"{what} has a damaged header ({type(error).__name__} {error}): copy it again") from error
    if dtype.hasobject:
        raise DataError(f"{what} holds pickled Python objects, which are never loaded: save it with a numeric dtype")
    if min(shape, default=0) < 0 or end + math.prod(shape) * dtype.itemsize > size:
        raise DataError(f"{what} is truncated: {size - end} bytes are left for the shape {shape} of {dtype}")
    return StoredArray("", dtype, shape, end, order="F" if is_turned else "C")


def _zipped(store: ByteStore, path: str, name: str, member: ZipMember, number: int) -> StoredArray:
    what = f"{path}: {name}"

    def first(count: int) -> bytes:
        data = store.read(path, member.offset, min(count + 1024 * member.is_deflated, member.nbytes))
        with translated(what, "a member of a zip"):
            return zlib.decompressobj(-15).decompress(data, count) if member.is_deflated else bytes(data[:count])

    found = _npy(first, what, member.size)
    if not member.is_deflated:
        return StoredArray(name, found.dtype, found.shape, member.offset + found.base, order=found.order)
    where = np.array([number, member.offset, member.nbytes], np.int64).reshape(*(1 for _ in found.shape), 3)
    codecs = ({"id": "inflate", "crc": member.crc}, {"id": "skip", "nbytes": found.base})
    return StoredArray(name, found.dtype, found.shape, -1, 0, where, found.shape, codecs, found.order)


@final
class ZipMember(NamedTuple):
    """Place of a member's bytes in a zip, whether they are deflated, and CRC-32 and size of its content."""

    offset: int
    nbytes: int
    is_deflated: bool
    crc: int
    size: int


def zip_members(store: ByteStore, path: str) -> dict[str, ZipMember]:
    """Members of a zip file by name. Raises ``DataError`` if it is damaged, encrypted, or of a method but deflate."""
    found = {}
    with translated(path, "a zip file"):
        with zipfile.ZipFile(io.BufferedReader(store.open(path))) as archive:
            listed = [member for member in archive.infolist() if not member.is_dir()]
        for member in listed:
            if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(
                    f"{path}: {member.filename} is encrypted, or compressed by method {member.compress_type} of zip: "
                    "write it stored or deflated, without a password"
                )
            header = store.read(path, member.header_offset, 30)
            offset = member.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
            is_deflated = member.compress_type == zipfile.ZIP_DEFLATED
            found[member.filename] = ZipMember(offset, member.compress_size, is_deflated, member.CRC, member.file_size)
    return found


def _dense(value: Any) -> Array:
    """An array of SciPy; a sparse one becomes dense."""
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value)


def load_mat(store: ByteStore, path: str) -> dict[str, Array]:
    """Arrays of a ``.mat`` file before 7.3, by SciPy. Raises ``DataError`` for a damaged one."""
    with translated(path, "a .mat file", "data-formats"):
        from scipy.io import loadmat

        loaded = loadmat(io.BytesIO(store.read(path)))
    return {name: _dense(value) for name, value in loaded.items() if not name.startswith("__")}


@final
class MatLibrary:
    """``.mat`` files: by SciPy, with a cache of the last files in each thread, and by h5py for MATLAB 7.3."""

    def __init__(self) -> None:
        self._files, self._hdf5 = ThreadCache(), Hdf5Library()

    def read(self, store: ByteStore, path: str, layout: ArrayLayout, row: int | None) -> Array:
        """One row of an array, or all of it."""
        if layout.order == "F":
            return self._hdf5.read(store, path, layout, row)

        def loaded() -> tuple[dict[str, Array], int]:
            arrays = load_mat(store, path)
            return arrays, sum(each.nbytes for each in arrays.values())

        whole: Array = self._files.get(path, loaded)[layout.name]
        return (whole if row is None else row_of(whole, layout.library_axis, row)).copy()
