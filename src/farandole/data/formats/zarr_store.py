"""Zarr stores, 2 and 3: arrays by name, each chunk read as its file or byte range and decoded by numcodecs.

    source = zarr("/lustre/era5.zarr", arrays=["t2m", "msl"], along="time")
    source = zarr("/lustre/volumes/*.zarr", arrays="0", per="file")         # OME-Zarr: one image per store

Folders, zip files and URLs. Values are as stored, in the byte order of Zarr 2's dtype, or of this machine (Zarr 3);
``scaled=True`` and ``fill=`` apply the CF conventions. A sample is assembled from one chunk or several; if the store is
sharded, from inner chunks. Absent chunks hold the fill value.

The ``zarr`` package is not used: its event loop costs more than a read does, and does not survive a fork. This module
has no thread and no lock. Codecs that run code (pickled objects) or that numcodecs lacks are refused by name.
"""

from __future__ import annotations

import base64
import glob
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from farandole.data.formats import cf
from farandole.data.formats.arrays import zip_members
from farandole.data.formats.chunk_codecs import ARRAYS, Codec, checked, refuse_unknown
from farandole.data.formats.reading import Index, translated
from farandole.data.formats.source import Decode, Source, load_index
from farandole.data.formats.stored_array import (
    Extent,
    Keys,
    Options,
    StoredArray,
    array_source,
    chosen_keys,
    grid_of,
    opened,
)
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Integers
from farandole.data.storage.listing import FileEntry, Where, endings_of, list_files
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

ABSENT = -1
"""Offset that marks an inner chunk as absent from a shard: all bits set."""

SERIAL = ("blosc", "gzip", "zstd", "vlen-utf8", "vlen-bytes")
DTYPES = {
    **{f"float{8 * size}": f"f{size}" for size in (2, 4, 8)},
    **dict(zip(("bool", "complex64", "complex128"), ("?", "c8", "c16"), strict=True)),
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits // 8}" for bits in (8, 16, 32, 64) for sign in ("", "u")},
    **dict.fromkeys(("string", "bytes", "variable_length_bytes"), "O"),
}


def zarr(
    path: Where = "",
    arrays: Keys = None,
    decode: Decode | None = None,
    *,
    along: int | str = 0,
    per: str = "sample",
    native: bool = False,
    scaled: bool = False,
    fill: cf.Fill = "raw",
    index: Index = None,
    store: ByteStore | None = None,
) -> Source:
    """Samples of Zarr stores: steps along a dimension of all stores in the order given; ``per="file"``: whole arrays.

    One array, or no name for a store with only one, gives arrays; a list gives dicts. Raises ``DataError`` with store,
    array and reason for an unknown codec or data type, and for an index of a shard that fails its checksum.
    """
    if index is not None:
        return opened(load_index(index, "zarr"), decode, store, None)
    entries: list[FileEntry] = []
    members = []
    for place in _places(path):
        tree = _Tree(store or store_for(place), place, len(entries))
        members.append((len(entries), {name: _stored_array(tree, name) for name in _names(tree, arrays)}))
        entries += tree.entries
    asked = {"scaled": scaled, "fill": fill, "defaults": False}
    options = Options(arrays, along, per, native, asked)
    return array_source("zarr", path, entries, members, options, None, decode, store)


@final
class _Tree:
    """Files of one store by name: of a folder, or members of a zip. ``first`` is the number of the first file."""

    def __init__(self, store: ByteStore, root: str, first: int) -> None:
        self.store, self.root, self.first = store, root.rstrip("/"), first
        self.files: dict[str, Extent] = {}
        self.is_zip = self.root.endswith(".zip")
        try:
            self.entries = list_files(self.root)
        except DataError:  # every chunk is absent: only hidden files exist
            hidden = [f"{self.root}/{name}" for name in (".zarray", ".zgroup")]
            self.entries = [FileEntry(each, store.size(each), 0) for each in hidden if _exists(store, each)]
            if not self.entries:
                raise
        for number, entry in enumerate(self.entries, first):
            self.files[entry.path[len(self.root) + 1 :]] = number, 0, entry.size
        if self.is_zip:
            members = zip_members(store, self.root)
            if deflated := [name for name, member in members.items() if member.is_deflated]:
                raise DataError(f"{root}: {deflated[0]} is deflated in its zip: write it with stored members (zip -0)")
            self.files = {name: (first, member.offset, member.nbytes) for name, member in members.items()}

    def document(self, name: str) -> dict[str, Any]:
        """A JSON file of the store; empty if it is missing."""
        path = self.root if self.is_zip else f"{self.root}/{name}"
        if name not in self.files and (self.is_zip or name[-4:] == "json" or not _exists(self.store, path)):
            return {}
        with translated(f"{self.root}/{name}", "JSON"):
            extent = self.files[name][1:] if self.is_zip else (0, -1)
            found: dict[str, Any] = json.loads(bytes(self.store.read(path, *extent)))
            return found

    def metadata(self, name: str) -> dict[str, Any]:
        """Description of an array; empty if no array has this name."""
        front = f"{name}/" if name else ""
        if found := self.document(f"{front}zarr.json"):
            return found if found.get("node_type") == "array" else {}
        if found := self.document(f"{front}.zarray"):
            found["attributes"] = self.document(f"{front}.zattrs")
        return found

    def chunks(self, name: str, grid: tuple[int, ...], parts_of: Callable[[str], list[str]]) -> Integers:
        """File, offset and bytes of each chunk of an array; ``parts_of`` turns a key into a place on the grid."""
        where = np.zeros((*grid, 3), np.int64)
        where[..., 0] = self.first
        front = f"{name}/" if name else ""
        for key, place in self.files.items():
            parts = parts_of(key[len(front) :]) if key.startswith(front) else ["-"]
            if len(parts) == len(grid) and all(part.isdecimal() for part in parts):
                at = tuple(int(part) for part in parts)
                if all(each < size for each, size in zip(at, grid, strict=True)):
                    where[at] = place
        return where


def _exists(store: ByteStore, path: str) -> bool:
    if "://" not in path:
        return os.path.isfile(path)
    try:
        return store.size(path) >= 0
    except DataError:
        return False


def _places(path: Where) -> list[str]:
    if not isinstance(path, str | os.PathLike):
        return [place for each in path for place in _places(each)]
    place = os.fspath(path)
    found = sorted(glob.glob(place)) if glob.has_magic(place) and not os.path.exists(place) else [place]
    if not found:
        raise DataError(f"{place}: there is no store; give a folder, a .zip, a pattern or a URL")
    return [each if "://" in each else os.path.abspath(each) for each in found]


def _names(tree: _Tree, arrays: Keys) -> tuple[str, ...]:
    asked = (arrays,) if isinstance(arrays, str) else tuple(arrays or ("",))
    if all(tree.metadata(name.strip("./")) for name in asked):
        return tuple(name.strip("./") for name in asked)
    parts = [name.split("/") for name in tree.files]
    folders = {"/".join(each[:depth]): None for each in parts for depth in range(1, len(each))}
    found = [name for name in folders if tree.metadata(name)]
    if not found and not any(tree.document(name) for name in ("zarr.json", ".zgroup")):
        there = endings_of(entry.path for entry in tree.entries)
        raise DataError(
            f"{tree.root} is no Zarr store: no zarr.json, .zgroup or .zarray is in it, but files: {there}. "
            "Give the folder of a store, or its .zip, or read these files by the reader of their format"
        )
    return chosen_keys(arrays, found, tree.root, "arrays")


def _stored_array(tree: _Tree, name: str) -> StoredArray:
    told, what = tree.metadata(name), f"{tree.root}: {name or 'the array'}"
    with translated(what, "Zarr"):
        found = (_of_v3 if told.get("zarr_format") == 3 else _of_v2)(tree, name, told, what)
        refuse_unknown(found.codecs, what)
        if found.dtype.hasobject and not {"vlen-utf8", "vlen-bytes"} & {each["id"] for each in found.codecs}:
            raise DataError(f"{what} holds Python objects, which are not read: write it again with 'vlen-utf8'")
        return found


def _of_v2(tree: _Tree, name: str, told: Mapping[str, Any], _: str) -> StoredArray:
    dtype, shape, chunk = np.dtype(_fields(told["dtype"])), tuple(told["shape"]), tuple(told["chunks"])
    codecs = tuple(each for each in (told["compressor"], *reversed(told["filters"] or ())) if each is not None)
    separator = told.get("dimension_separator", ".")
    where = tree.chunks(name, grid_of(shape, chunk), lambda key: key.split(separator) if shape else [key][key == "0" :])
    fill, attributes = _fill(told["fill_value"], dtype), dict(told["attributes"])
    if told["fill_value"] is not None:  # xarray stores it there
        attributes.setdefault("_FillValue", fill)
    dims = tuple(attributes.get("_ARRAY_DIMENSIONS", ()))
    order = told.get("order", "C")
    return StoredArray(name, dtype, shape, -1, 0, where, chunk, codecs, order, fill, dims, attributes)


def _of_v3(tree: _Tree, name: str, told: Mapping[str, Any], what: str) -> StoredArray:
    grid, keys = told["chunk_grid"], told["chunk_key_encoding"]
    if told.get("storage_transformers") or grid["name"] != "regular":
        raise DataError(f"{what} has storage transformers or a {grid['name']!r} grid: only regular ones are read")
    dtype, shape, chunk = (
        _data_type(told["data_type"], what),
        tuple(told["shape"]),
        tuple(grid["configuration"]["chunk_shape"]),
    )
    is_default = keys["name"] == "default"
    separator = keys.get("configuration", {}).get("separator", "/" if is_default else ".")

    def parts_of(key: str) -> list[str]:
        parts = key.split(separator)
        if is_default:
            return parts[1:] if parts[0] == "c" else ["-"]
        return parts if shape else parts[key == "0" :]

    where = tree.chunks(name, grid_of(shape, chunk), parts_of)
    specs = [_spec(each) for each in told["codecs"]]
    if "sharding_indexed" in dict(specs):
        if len(specs) > 1:
            raise DataError(f"{what} has shards encoded by {list(dict(specs))}: 'sharding_indexed' alone is read")
        inner, given = tuple(specs[0][1]["chunk_shape"]), specs[0][1]
        where = _inner_places(tree, where, tuple(a // b for a, b in zip(chunk, inner, strict=True)), given, what)
        where = where[tuple(slice(0, size) for size in grid_of(shape, inner))]
        specs, chunk = [_spec(each) for each in given["codecs"]], inner
    codecs, attributes = _codecs(specs, dtype, chunk, what), dict(told.get("attributes") or {})
    if isinstance(attributes.get("_FillValue"), str) and dtype.kind == "f":  # as xarray writes it
        attributes["_FillValue"] = np.frombuffer(base64.b64decode(attributes["_FillValue"]), "<f8")[0]
    dims, fill = tuple(str(each) for each in told.get("dimension_names") or ()), _fill(told["fill_value"], dtype)
    return StoredArray(name, dtype, shape, -1, 0, where, chunk, codecs, "C", fill, dims, attributes)


def _codecs(
    specs: Iterable[tuple[str, dict[str, Any]]], dtype: np.dtype[Any], shape: tuple[int, ...], what: str
) -> tuple[Codec, ...]:
    """Codecs of Zarr 3 in the order of decoding."""
    found: list[Codec] = []
    for name, given in specs:
        short = name.removeprefix("numcodecs.")
        if name == "transpose":
            order = given["order"]
            if not isinstance(order, list) or sorted(order) != list(range(len(shape))):
                raise DataError(f"{what} is transposed by {order!r}, which Zarr 3 has not: a list of axes is read")
            shape = tuple(shape[axis] for axis in order)
            found.append({"id": "transpose", "shape": shape, "axes": np.argsort(order).tolist()})
        elif name == "bytes":
            found.append({"id": "bytes", "dtype": dtype.newbyteorder(">" if given.get("endian") == "big" else "<").str})
        elif name == "crc32c":
            found.append({"id": "checked"})
        elif name != short and short in ARRAYS:
            needed = {"astype": ["decode_dtype"], "bitround": [], "packbits": []}.get(short, ["dtype"])
            found.append({"id": short, **dict.fromkeys(needed, dtype.str), **given})
            dtype = np.dtype("u1" if short == "packbits" else given.get("encode_dtype", given.get("astype", dtype)))
        elif name != short or name in SERIAL:
            found.append({"id": short, **({} if name == short else given)})
        else:
            raise DataError(f"{what} is encoded by {name!r}, which is not read: write it again with zstd")
    return tuple(reversed(found))


def _inner_places(tree: _Tree, shards: Integers, per: tuple[int, ...], given: Mapping[str, Any], what: str) -> Integers:
    """Places of the inner chunks of shards, ``per`` along each axis, from the index in each shard."""
    specs = [_spec(each) for each in given.get("index_codecs", ["bytes", "crc32c"])]
    names = [name for name, _ in specs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise DataError(f"{what} has shards whose index is encoded by {names}: ['bytes', 'crc32c'] is read")
    dtype = ">u8" if specs[0][1].get("endian") == "big" else "<u8"
    length = 16 * math.prod(per) + (4 if len(names) == 2 else 0)
    grid = shards.shape[:-1]
    places = np.zeros((*(many * each for many, each in zip(grid, per, strict=True)), 3), np.int64)
    for at in np.ndindex(*grid):
        file, offset, nbytes = (int(each) for each in shards[at])
        if nbytes == 0:
            continue
        path = tree.entries[file - tree.first].path
        begin = offset if given.get("index_location") == "start" else offset + nbytes - length
        data: Any = tree.store.read(path, begin, length) if nbytes >= length else b""
        if data and len(names) == 2:
            data = checked(data, f"{path}: the index of the shard")
        index = np.frombuffer(data, dtype).astype(np.int64).reshape(-1, 2)
        is_there = index[:, 0] != ABSENT
        if not len(index) or (index[is_there] < 0).any() or (index[is_there].sum(-1) > nbytes).any():
            raise DataError(f"{path}: the index of the shard is cut off, or names bytes beyond its end: copy it again")
        index[:, 0] += offset
        index[~is_there] = 0
        block = places[tuple(slice(each * many, (each + 1) * many) for each, many in zip(at, per, strict=True))]
        block[..., 0], block[..., 1:] = file, index.reshape(*per, 2)
    return places


def _spec(codec: Any) -> tuple[str, dict[str, Any]]:
    return (codec, {}) if isinstance(codec, str) else (codec["name"], codec.get("configuration") or {})


def _fields(told: Any) -> Any:
    """A dtype of Zarr 2: a text, or a list of names, dtypes and perhaps shapes."""
    if isinstance(told, str):
        return told
    return [(each[0], _fields(each[1]), *(tuple(part) for part in each[2:])) for each in told]


def _data_type(told: Any, what: str) -> np.dtype[Any]:
    name, given = _spec(told)
    if name in DTYPES:
        return np.dtype(DTYPES[name])
    if name == "fixed_length_utf32":
        return np.dtype(f"U{given['length_bytes'] // 4}")
    if name in ("null_terminated_bytes", "raw_bytes"):
        return np.dtype(f"{'S' if name[0] == 'n' else 'V'}{given['length_bytes']}")
    if name in ("numpy.datetime64", "numpy.timedelta64") and given["unit"] != "generic":
        return np.dtype(
            f"{name[6].replace('t', 'm').replace('d', 'M')}8[{given.get('scale_factor', 1)}{given['unit']}]"
        )
    if name[0] == "r" and name[1:].isdecimal():
        return np.dtype(f"V{int(name[1:]) // 8}")
    raise DataError(f"{what} has the data type {name!r}, which is not read: write it as one of {', '.join(DTYPES)}")


def _fill(told: Any, dtype: np.dtype[Any]) -> Any:
    if told is None or dtype.hasobject:
        return told if isinstance(told, str) else "" if dtype.hasobject else np.zeros((), dtype)
    if dtype.kind == "c" and isinstance(told, Sequence):
        return np.array(complex(*(float(part) for part in told)), dtype)
    if isinstance(told, str) and told.startswith("0x"):
        return np.frombuffer(bytes.fromhex(told[2:]), dtype.newbyteorder(">"))[0]
    if dtype.kind in "SV":
        raw = base64.b64decode(told) if isinstance(told, str) else bytes(told or dtype.itemsize)
        return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)[0]
    return np.array(told, dtype)
