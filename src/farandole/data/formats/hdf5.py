"""HDF5 files: data sets by name, read by byte ranges, or by h5py if only HDF5 can decode a chunk.

    source = hdf5("/lustre/cam5/*.h5", keys=["climate/data", "climate/labels_0"], per="file")
    source = hdf5("/lustre/typhoon.h5", keys="Infrared")

Values are as stored, in the byte order of the file (``native=True``: of this machine); ``scaled=True`` applies scale
and offset of the CF conventions, ``fill="nan"`` or ``"mask"`` their missing values. Compound types are structured
arrays, strings of variable length are objects. Only attributes of CF are read: nothing is unpickled.

Contiguous data sets, and chunks of gzip, shuffle, Fletcher's checksum, Blosc or Zstandard, are read by byte ranges; all
others by h5py, which has one lock: use processes there, not threads. Files are opened read-only and never locked, and
h5py is refused in a fork of a process that has used it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, final

import numpy as np

from farandole.data.formats import cf
from farandole.data.formats.chunk_codecs import Array, Codec
from farandole.data.formats.reading import Index, ThreadCache, translated
from farandole.data.formats.source import Decode, ForkGuard, Source, load_index
from farandole.data.formats.stored_array import (
    ArrayLayout,
    Keys,
    Options,
    StoredArray,
    array_source,
    chosen_keys,
    grid_of,
    opened,
)
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.listing import Where, list_files
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
SIGNATURE = b"\x89HDF\r\n\x1a\n"
HDF4 = b"\x0e\x03\x13\x01"
OWN = dict(enumerate(("gzip", "shuffle", "Fletcher's checksum", "szip", "n-bit", "scale-offset"), 1)) | {305: "LZO"}
BUNDLED = {307: "bzip2", 32001: "Blosc", 32004: "LZ4", 32008: "bitshuffle", 32013: "ZFP", 32015: "Zstandard"}
BUNDLED |= {32017: "SZ", 32018: "FCIDECOMP", 32024: "SZ3", 32026: "Blosc2"}
"""Filters that hdf5plugin provides; ``OWN``: filters of HDF5 itself, and LZO, which no package provides."""

GUARD = ForkGuard("h5py")
OPEN_FILE_BYTES = 4 * 2**20
"""Bytes that an open file counts in the cache of a thread, which thus keeps 16 files open."""


def hdf5(
    path: Where = "",
    keys: Keys = None,
    decode: Decode | None = None,
    *,
    along: int = 0,
    per: str = "sample",
    native: bool = False,
    scaled: bool = False,
    fill: cf.Fill = "raw",
    index: Index = None,
    store: ByteStore | None = None,
) -> Source:
    """Samples of HDF5 files: rows along an axis of all files in the order of their paths; ``per="file"``: whole files.

    One key, or no key for a file with only one data set, gives arrays; a list gives dicts. Raises ``DataError`` with
    file and reason for a missing filter, references, and numbers that are kept in other files.
    """
    if index is not None:
        return opened(load_index(index, "hdf5"), decode, store, Hdf5Library)
    entries = list_files(path, SUFFIXES)
    reader, members = store or store_for(entries[0].path), []
    for number, entry in enumerate(entries):
        with translated(entry.path, "HDF5"), h5_file(reader, entry.path) as file:
            names = keys_of(file, keys, entry.path)
            members.append((number, {name: stored_array(file, name, entry.path, number) for name in names}))
    asked = {"scaled": scaled, "fill": fill, "defaults": False}
    options = Options(keys, along, per, native, asked)
    return array_source("hdf5", path, entries, members, options, Hdf5Library, decode, store)


def is_hdf5(store: ByteStore, path: str) -> bool:
    """True if a file has HDF5's signature: at byte 0, or after a user block of 512, 1024, 2048 ... bytes."""
    size, at = store.size(path), 0
    while at + len(SIGNATURE) <= size:
        if store.read(path, at, len(SIGNATURE)) == SIGNATURE:
            return True
        at = max(512, at * 2)
    return False


def h5_file(store: ByteStore, path: str, wanted: str = "HDF5") -> Any:
    """Open an HDF5 file for reading, without a lock. Raises ``DataError`` for another file, with what it is."""
    if not is_hdf5(store, path):
        magic = bytes(store.read(path, 0, min(8, store.size(path))))
        if magic.startswith(HDF4):
            raise DataError(f"{path} is HDF4, which is not read: convert it, by h4toh5 or 'gdal_translate -of netCDF'")
        raise DataError(f"{path} is no {wanted} file: it begins with {magic!r}; check the path, or copy it again")
    GUARD.enter()
    import h5py

    with suppress(ImportError):
        import hdf5plugin  # noqa: F401 (registers its filters)
    if (local := store.local_path(path)) is not None:
        try:
            return h5py.File(local, "r", locking=False)
        except OSError as error:
            if "flag values don't match" not in str(error):  # this process has it open, and locked, elsewhere
                raise
    return h5py.File(store.open(path), "r")


def keys_of(file: Any, keys: Keys, path: str, word: str = "keys") -> tuple[str, ...]:
    """Data sets that the caller named, or the only one; all of the file is searched only to list the names."""
    import h5py

    asked = (keys,) if isinstance(keys, str) else tuple(keys or ())
    if asked and all(file.get(key, getclass=True) is h5py.Dataset for key in asked):
        return asked
    return chosen_keys(keys, names_of(file), path, word)


def names_of(file: Any) -> list[str]:
    """Names of all data sets of a file."""
    import h5py

    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def stored_array(file: Any, name: str, path: str, number: int, dims: tuple[str, ...] = ()) -> StoredArray:
    """Places of the numbers of a data set. Raises ``DataError`` with its name if it cannot be read."""
    import h5py

    dataset = file[name]
    what, dtype = f"{path}: {name}", dataset.dtype
    if dataset.shape is None:
        raise DataError(f"{what} is a null data space without any value: leave it out")
    if _has_references(dtype):
        raise DataError(f"{what} holds references into its file, which are not read: name the data sets they refer to")
    if away := _elsewhere(dataset, file):
        raise DataError(
            f"{what} keeps its numbers in {', '.join(away[:3])}: read these files instead, or copy them into one"
        )
    filters = _filters(dataset, what)
    attributes = {each: dataset.attrs[each] for each in (*cf.ATTRIBUTES, "MATLAB_empty") if each in dataset.attrs}
    common: dict[str, Any] = {"dims": dims, "attributes": attributes, "has_library": True}
    same = not dtype.hasobject and dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True))
    if not same or dataset.is_virtual:
        return StoredArray(name, dtype, dataset.shape, **common)
    if dataset.chunks is None:
        offset = dataset.id.get_offset() if dataset.id.get_storage_size() else None  # no storage: only a fill value
        return StoredArray(name, dtype, dataset.shape, -1 if offset is None else int(offset), **common)
    codecs = _codecs(filters, dtype.itemsize)
    where = _chunk_places(dataset, number, bool(filters)) if codecs is not None and not file.userblock_size else None
    if where is not None:
        common |= {"where": where, "chunk": dataset.chunks, "codecs": codecs, "fill": dataset.fillvalue}
    return StoredArray(name, dtype, dataset.shape, **common)


def _elsewhere(dataset: Any, file: Any) -> list[str]:
    """Other files in which a data set keeps numbers: parts of a virtual one, external storage, a link."""
    names = {os.fsdecode(each[0]) for each in dataset.external or ()}
    if dataset.is_virtual:
        names |= {each.file_name for each in dataset.virtual_sources()} - {"."}
    if dataset.file.filename != file.filename:
        names.add(os.fsdecode(dataset.file.filename))
    return sorted(names)


def _chunk_places(dataset: Any, number: int, has_filters: bool) -> Array | None:
    """File, offset and bytes of each chunk; ``None`` if some chunk skips a filter."""
    where = np.zeros((*grid_of(dataset.shape, dataset.chunks), 3), np.int64)
    where[..., 0] = number
    skipped = []

    def note(chunk: Any) -> None:
        if chunk.filter_mask and has_filters:
            skipped.append(chunk)
        at = tuple(offset // part for offset, part in zip(chunk.chunk_offset, dataset.chunks, strict=True))
        where[at] = number, chunk.byte_offset, chunk.size

    if where.size:
        dataset.id.chunk_iter(note)
    return None if skipped else where


def _filters(dataset: Any, what: str) -> list[int]:
    """Numbers of the filters of a data set. Raises ``DataError`` for a missing one, with the package to install."""
    import h5py

    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    for code, _, _, told in found:
        if not h5py.h5z.filter_avail(code):
            name = (OWN | BUNDLED).get(code) or told.decode("ascii", "replace").strip("\0") or "unknown"
            cure = "a plugin for it in a folder that HDF5_PLUGIN_PATH names"
            cure = 'hdf5plugin: pip install "farandole[data]"' if code in BUNDLED else cure
            raise DataError(f"{what} is written with filter {code} ({name}), which this HDF5 lacks: it needs {cure}")
    return [code for code, *_ in found]


def _codecs(filters: Sequence[int], itemsize: int) -> tuple[Codec, ...] | None:
    """Codecs in the order of decoding; ``None`` if HDF5 must decode."""
    known: dict[int, Codec] = {
        1: {"id": "deflate"},
        2: {"id": "shuffle", "elementsize": itemsize},
        3: {"id": "fletcher32"},
        32001: {"id": "blosc"},
        32015: {"id": "zstd"},
    }
    return tuple(known[code] for code in reversed(filters)) if known.keys() >= set(filters) else None


def _has_references(dtype: np.dtype[Any]) -> bool:
    import h5py

    if dtype.names is not None:
        return any(_has_references(dtype[name]) for name in dtype.names)
    inside = h5py.check_vlen_dtype(dtype) or (dtype.subdtype and dtype.subdtype[0])
    return h5py.check_ref_dtype(dtype) is not None or (isinstance(inside, np.dtype) and _has_references(inside))


@final
class Hdf5Library:
    """Reads data sets by h5py. Each thread opens its own files."""

    def __init__(self) -> None:
        self._files = ThreadCache()

    def read(self, store: ByteStore, path: str, layout: ArrayLayout, row: int | None) -> Array:
        """One row of a data set, or all of it."""
        GUARD.enter()
        with translated(f"{path}: {layout.name}", "HDF5"):
            dataset = self._files.get(path, lambda: (h5_file(store, path), OPEN_FILE_BYTES))[layout.name]
            found = dataset[() if row is None else (slice(None),) * layout.library_axis + (row,)]
        if not isinstance(found, np.ndarray):
            whole = np.empty((), dataset.dtype)
            whole[()] = found
            return whole
        return found.T if layout.order == "F" else found
