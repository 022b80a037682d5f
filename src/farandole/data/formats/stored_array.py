"""``StoredArray``: an array of a file, and where its bytes lie; ``array_source``: samples from many arrays.

    found = StoredArray("x", np.dtype("<f4"), (1000, 128, 128), base=2048)
    source = array_source("npy", "/lustre/set", entries, [(0, {"x": found})], ["x"], ArrayLibrary, along=0)

Three ways ("lanes") lead from bytes to a sample. ``rows``: the sample is one run of bytes. ``chunks``: the sample is
cut from one chunk or assembled from several, each a run of bytes that zlib or numcodecs decodes. Both read through the
store, with no lock but NumPy's. ``library``: the format's own library opens the file.
"""

from __future__ import annotations

import math
from abc import ABC
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, final

import msgspec
import numpy as np
import numpy.typing as npt

from farandole.data.formats import cf
from farandole.data.formats.chunk_codecs import Array, Codec, decode_chunk
from farandole.data.formats.reading import ThreadCache
from farandole.data.formats.source import Decode, Source
from farandole.data.storage.byte_store import ByteStore, Rows
from farandole.data.storage.fields import Field, Integers
from farandole.data.storage.listing import FileEntry, Where, root_of
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.waits import during
from farandole.errors import DataError, UsageError

MOST_COLUMNS = 16384
"""Most chunks of one array that one sample may need."""

MOST_BY_RANGES = 256
"""Most chunks of a sample that are read by ranges, if the format has a library: it is faster beyond that."""

Keys: TypeAlias = "str | Sequence[str] | None"
Extent: TypeAlias = "tuple[int, int, int]"
Member: TypeAlias = "tuple[int, Mapping[str, StoredArray]]"
"""A file, or a store of many files: the number of its (first) file in the listing, and its arrays."""


@final
@dataclass(frozen=True)
class StoredArray:
    """An array in a file: contiguous from ``base`` on, or in chunks at ``where``, or readable only by a library.

    ``where`` has the shape of the grid of chunks and a last axis of file, offset and bytes (0 bytes: the chunk is
    absent and holds ``fill``). ``stride`` is the distance of rows if they are not packed.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    base: int = -1
    stride: int = 0
    where: Integers | None = None
    chunk: tuple[int, ...] = ()
    codecs: tuple[Codec, ...] = ()
    order: Literal["C", "F"] = "C"
    fill: Any = 0
    dims: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    has_library: bool = False

    def turned(self) -> StoredArray:
        """The same bytes with axes reversed, as MATLAB counts them."""
        where = None if self.where is None else self.where.transpose(*reversed(range(len(self.shape))), -1)
        return replace(self, shape=self.shape[::-1], where=where, chunk=self.chunk[::-1], order="F", dims=())


@final
class ArrayLayout(msgspec.Struct, frozen=True):
    """Recipe that makes a part of a sample from its extents: kept once in the manifest for all files that share it."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    axis: int | None
    lane: Literal["rows", "chunks", "library"]
    order: Literal["C", "F"]
    codecs: tuple[dict[str, Any], ...]
    fill: bytes
    decoding: cf.Decoding | None
    is_native: bool

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(size for axis, size in enumerate(self.shape) if axis != self.axis)

    @property
    def library_axis(self) -> int:
        """Axis of the samples in the file."""
        axis = self.axis or 0
        return len(self.shape) - 1 - axis if self.order == "F" else axis


class ArrayLibrary(Protocol):
    """Reads files by the library of a format; each process has its own. Any thread may call it."""

    def read(self, store: ByteStore, path: str, layout: ArrayLayout, row: int | None) -> Array:
        """One row of an array along ``layout.axis``, or all of it."""


class ArraySource(Source, ABC):
    """Samples that are arrays, or dicts of arrays by key. Threads cache decoded chunks that hold several samples."""

    def __init__(
        self,
        manifest: Manifest,
        decode: Decode | None = None,
        store: ByteStore | None = None,
        library: type[ArrayLibrary] | None = None,
    ) -> None:
        super().__init__(manifest, decode, store)
        self._details, self._library_type = manifest.details, library
        self._starts = list(self._details["starts"])
        self._layouts = [msgspec.convert(each, ArrayLayout) for each in self._details["layouts"]]
        self._dtypes = [_dtype(layout.dtype) for layout in self._layouts]
        self._is_plain = all(
            layout.lane == "rows"
            and layout.decoding is None
            and (layout.order == "C" or len(layout.row_shape) < 2)
            and (dtype.isnative or not layout.is_native)
            for layout, dtype in zip(self._layouts, self._dtypes, strict=True)
        )
        self.reopen()

    def reopen(self) -> None:
        self._blocks = ThreadCache()
        self._library = self._library_type() if self._library_type is not None else None

    def sample(self, index: int) -> Any:
        member = bisect_right(self._starts, index) - 1
        extents = self.manifest.extents(index)
        parts, at = [], 0
        for columns, number in zip(self._details["columns"], self._details["layout_of"][member], strict=True):
            stored = self._stored(number, extents[at : at + columns], index - self._starts[member])
            layout = self._layouts[number]
            if layout.decoding is not None:
                stored = cf.decode(stored, layout.decoding, f"{self.path_of(index)}: {layout.name}")
            elif layout.is_native:
                stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            parts.append(stored)
            at += columns
        return parts[0] if self._details["single"] else dict(zip(self._details["keys"], parts, strict=True))

    def read_into(self, index: int, arrays: Sequence[Array]) -> bool:
        """Read a sample into ``arrays``, without a copy; false if their form differs, or the sample needs decoding."""
        if not self._is_plain or self.decode is not None:
            return False
        extents = self.manifest.extents(index)
        numbers = self._details["layout_of"][bisect_right(self._starts, index) - 1]
        for array, number in zip(arrays, numbers, strict=True):
            is_alike = array.shape == self._layouts[number].row_shape and array.dtype == self._dtypes[number]
            if not (is_alike and array.flags.c_contiguous):
                return False
        for array, (file, offset, nbytes) in zip(arrays, extents, strict=True):
            if nbytes:
                self.store.read_into(self.manifest.paths[file], offset, array.reshape(-1).view(np.uint8).data)
        return True

    def read_batch(self, indices: Sequence[int], columns: Sequence[Array]) -> bool:
        """Read samples into the rows of ``columns``, like ``read_into``, at the cost of one call."""
        if not self._is_plain or self.decode is not None or len(self._layouts) != len(columns):
            return False
        for column, layout, dtype in zip(columns, self._layouts, self._dtypes, strict=True):
            if column.shape[1:] != layout.row_shape or column.dtype != dtype or not column.flags.c_contiguous:
                return False
        for column, place in zip(columns, self.manifest.fields, strict=True):
            if not column.nbytes:
                continue
            files, offsets, _ = place.locate(indices)
            paths = [self.manifest.paths[file] for file in files.tolist()]
            rows = Rows(column.reshape(-1).view(np.uint8).data, column[:1].nbytes)
            self.store.read_rows(paths, offsets.tolist(), rows)
        return True

    def _stored(self, number: int, extents: list[Extent], row: int) -> Array:
        layout, dtype = self._layouts[number], self._dtypes[number]
        file, offset, nbytes = extents[0]
        if layout.lane == "rows":
            data = self.store.read(self.manifest.paths[file], offset, nbytes)
            flat = np.frombuffer(data, dtype) if nbytes else np.empty(0, dtype)
            return flat.reshape(layout.row_shape, order=layout.order)
        if layout.lane == "library":
            assert self._library is not None
            with during("decode"):
                path = self.manifest.paths[file]
                return self._library.read(self.store, path, layout, None if layout.axis is None else row)
        grid = [1 if at == layout.axis else size for at, size in enumerate(grid_of(layout.shape, layout.chunk))]
        out = np.empty(layout.row_shape, dtype)
        for place, extent in zip(np.ndindex(*grid), extents, strict=False):
            block = self._block(number, extent)
            corner = zip(place, layout.chunk, strict=True)
            target: list[Any] = [slice(at * part, (at + 1) * part) for at, part in corner]
            if layout.axis is not None:
                block = row_of(block, layout.axis, row % layout.chunk[layout.axis])
                del target[layout.axis]
            into: Array = out[(*target, ...)]
            into[...] = block[tuple(slice(0, size) for size in into.shape)]
        return out

    def _block(self, number: int, extent: Extent) -> Array:
        layout, dtype = self._layouts[number], self._dtypes[number]
        if extent[2] == 0:
            fill = msgspec.msgpack.decode(layout.fill) if dtype.hasobject else np.frombuffer(layout.fill, dtype)[0]
            return np.broadcast_to(np.array(fill, dtype), layout.chunk)

        def decoded() -> tuple[Array, int]:
            path = self.manifest.paths[extent[0]]
            data = self.store.read(path, *extent[1:])
            what, turned = f"{path}: {layout.name or 'the array'} at byte {extent[1]}", layout.order == "F"
            with during("decode"):
                shape = layout.chunk[::-1] if turned else layout.chunk
                block = decode_chunk(data, layout.codecs, dtype, shape, what)
            return (block.T if turned else block), block.nbytes

        is_shared = layout.axis is not None and layout.chunk[layout.axis] > 1
        found: Array = self._blocks.get((number, extent), decoded) if is_shared else decoded()[0]
        return found


@final
class RangeArrays(ArraySource):
    """Arrays that are read by byte ranges: threads decode in parallel."""


@final
class LibraryArrays(ArraySource):
    """Arrays of which some are read by a library under its lock, or hold Python objects."""

    holds_lock: ClassVar[bool] = True


def opened(
    manifest: Manifest, decode: Decode | None, store: ByteStore | None, library: type[ArrayLibrary] | None
) -> ArraySource:
    """Source of a manifest of arrays."""
    layouts = [msgspec.convert(each, ArrayLayout) for each in manifest.details["layouts"]]
    locks = any(layout.lane == "library" or _dtype(layout.dtype).hasobject for layout in layouts)
    return (LibraryArrays if locks else RangeArrays)(manifest, decode, store, library)


@final
class Options(NamedTuple):
    """Options of the caller. ``decoding``: arguments of ``cf.Decoding``; ``None``: values as stored."""

    keys: Keys = None
    along: int | str = 0
    per: str = "sample"
    native: bool = False
    decoding: Mapping[str, Any] | None = None


def array_source(
    format_name: str,
    path: Where,
    entries: Sequence[FileEntry],
    members: Sequence[Member],
    options: Options,
    library: type[ArrayLibrary] | None = None,
    decode: Decode | None = None,
    store: ByteStore | None = None,
) -> ArraySource:
    """Samples along an axis of all members; ``per="file"``: one sample of each.

    Raises ``DataError``, naming the file, if the keys of a file have different lengths.
    """
    if options.per not in ("sample", "file"):
        raise UsageError(f"per={options.per!r} was asked for: per='sample' (rows along an axis) or per='file'")
    names = list(members[0][1])
    layouts: dict[bytes, int] = {}
    counts: list[int] = []
    layout_of: list[list[int]] = []
    runs: list[list[list[Integers]]] = []
    for file, arrays in members:
        if list(arrays) != names:
            raise DataError(f"{entries[file].path} has {list(arrays)}, and the file before {names}: name those wanted")
        count, placed = _placed_all(arrays, file, entries[file], options)
        counts.append(count)
        layout_of.append([layouts.setdefault(msgspec.msgpack.encode(each), len(layouts)) for each, _ in placed])
        runs.append([each for _, each in placed])
    columns = [max(len(each[number]) for each in runs) for number in range(len(names))]
    details = {
        "keys": names,
        "single": options.keys is None or isinstance(options.keys, str),
        "starts": [0, *np.cumsum(counts).tolist()],
        "layouts": [msgspec.msgpack.decode(each) for each in layouts],
        "layout_of": layout_of,
        "columns": columns,
    }
    fields = [field for number, most in enumerate(columns) for field in _fields([each[number] for each in runs], most)]
    return opened(Manifest.of(format_name, root_of(path), entries, fields, details), decode, store, library)


def chosen_keys(keys: Keys, names: Sequence[str], path: str, word: str = "keys") -> tuple[str, ...]:
    """Keys that the caller named; by default the only array of a file.

    Raises ``DataError``, with a list of the arrays, if there are several, or none.
    """
    asked = (keys,) if isinstance(keys, str) else tuple(keys or (names if len(names) == 1 else ()))
    unknown = [key for key in asked if key not in names]
    if unknown or not asked:
        listed = ", ".join(repr(name) for name in list(names)[:20]) or "it is empty"
        wanted = f"no array {unknown[0]!r}" if unknown else "several arrays" if names else "no array"
        raise DataError(
            f"{path} has {wanted} ({listed}): name one by {word}='...', or several by a list; in a command: --keys A,B"
        )
    return asked


def row_of(array: Array, axis: int, row: int) -> Array:
    """One row along an axis; an array even if the row is one number."""
    place: Any = (*[slice(None)] * axis, row, ...)
    return np.asarray(array[place])


def grid_of(shape: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """Number of chunks along each axis."""
    return tuple(-(-size // max(1, part)) for size, part in zip(shape, chunk, strict=True))


def _placed_all(
    arrays: Mapping[str, StoredArray], file: int, entry: FileEntry, options: Options
) -> tuple[int, list[tuple[ArrayLayout, list[Integers]]]]:
    """Number of samples of a file, and the layout and the blocks of each of its arrays."""
    axes = [None if options.per == "file" else _axis(each, options.along, entry.path) for each in arrays.values()]
    count, found = _length(arrays, axes, entry.path), []
    for axis, array in zip(axes, arrays.values(), strict=True):
        what, asked = f"{entry.path}: {array.name}", options.decoding
        how = None if asked is None else cf.decoding_of(array.attributes, array.dtype, what, **asked)
        layout, runs = _placed(array, axis, (file, count, entry.size), what)
        found.append((msgspec.structs.replace(layout, decoding=how, is_native=options.native), runs))
    return count, found


def _fields(runs: list[list[Integers]], most: int) -> Iterator[Field]:
    """Fields of one key, of ``most`` columns: a file that needs fewer columns has empty ones."""
    for at in range(most):
        rows = [run[at] if at < len(run) else _emptied(run[0]) for run in runs]
        yield Field.regular(*np.concatenate(rows, axis=1))


def _emptied(run: Integers) -> Integers:
    return _one_run(int(run[0, 0]), int(run[1].sum()), 0, 0, 0)


def _axis(array: StoredArray, along: int | str, path: str) -> int:
    if isinstance(along, str) and along in array.dims:
        return array.dims.index(along)
    if isinstance(along, int) and -len(array.shape) <= along < len(array.shape):
        return along % len(array.shape)
    has = ", ".join(array.dims) or f"the shape {array.shape}"
    raise DataError(f"{path}: {array.name} has no axis {along!r}, but {has}: give another, or per='file'")


def _length(arrays: Mapping[str, StoredArray], axes: Sequence[int | None], path: str) -> int:
    lengths = {
        name: 1 if axis is None else array.shape[axis] for axis, (name, array) in zip(axes, arrays.items(), strict=True)
    }
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"{path}: keys differ in the number of samples: {told}; give keys of the same length")
    return next(iter(lengths.values()))


def _placed(
    array: StoredArray, axis: int | None, member: tuple[int, int, int], what: str
) -> tuple[ArrayLayout, list[npt.NDArray[np.int64]]]:
    """Layout of an array, and the blocks of each column of chunks: rows of file, count, base, stride and bytes."""
    file, count, size = member
    packed = math.prod(array.shape[1:]) * array.dtype.itemsize
    nbytes = math.prod(part for at, part in enumerate(array.shape) if at != axis) * array.dtype.itemsize
    is_loose = array.stride not in (0, packed)
    outermost = 0 if array.order == "C" else len(array.shape) - 1
    where, chunk = array.where, array.chunk or array.shape
    needed = 1 if where is None else math.prod(part for at, part in enumerate(where.shape[:-1]) if at != axis)
    lane: Literal["rows", "chunks", "library"] = "rows"
    if 0 in array.shape:
        runs = [_one_run(file, count, 0, 0, 0)]
    elif (where is None and array.base < 0) or (array.has_library and needed > MOST_BY_RANGES):
        lane, runs = "library", [_one_run(file, count, 0, 0, size)]
    elif where is None and (axis == outermost or (axis is None and not is_loose)):
        runs = [_one_run(file, count, array.base, array.stride or nbytes, nbytes)]
    else:
        lane = "chunks"
        if where is None:  # one chunk, or one of each record
            chunk = (1, *array.shape[1:]) if is_loose else array.shape
            where = np.zeros((*grid_of(array.shape, chunk), 3), np.int64)
            lined = where.reshape(-1, 3)
            lined[:] = file, array.base, math.prod(chunk) * array.dtype.itemsize
            lined[:, 1] += np.arange(len(lined)) * array.stride
        runs = _columns(where, axis, count, chunk, what)
    fill = msgspec.msgpack.encode(array.fill) if array.dtype.hasobject else np.array(array.fill, array.dtype).tobytes()
    codecs = tuple(dict(codec) for codec in array.codecs)
    dtype = _spelt(array.dtype)
    return ArrayLayout(array.name, dtype, array.shape, chunk, axis, lane, array.order, codecs, fill, None, False), runs


def _columns(where: Integers, axis: int | None, count: int, chunk: tuple[int, ...], what: str) -> list[Integers]:
    step = count if axis is None else chunk[axis]
    lined = (where[None] if axis is None else np.moveaxis(where, axis, 0)).reshape(-(-count // step), -1, 3)
    if lined.shape[1] > MOST_COLUMNS:
        raise DataError(
            f"{what}: {lined.shape[1]} chunks make one sample, and {MOST_COLUMNS} at most are read: give "
            "along= the axis that is cut most, or write it again with larger chunks"
        )
    counts = np.minimum(step, count - np.arange(len(lined)) * step)
    return [np.stack([part[:, 0], counts, part[:, 1], counts * 0, part[:, 2]]) for part in lined.transpose(1, 0, 2)]


def _one_run(file: int, count: int, base: int, stride: int, nbytes: int) -> Integers:
    return np.array([[file], [count], [base], [stride], [nbytes]], np.int64)


def _spelt(dtype: np.dtype[Any]) -> Any:
    """A dtype as texts, numbers, lists and dicts, without metadata of libraries."""
    if dtype.names is not None and dtype.fields is not None:
        parts = [dtype.fields[name] for name in dtype.names]
        formats, offsets = [_spelt(part[0]) for part in parts], [part[1] for part in parts]
        return {"names": list(dtype.names), "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize}
    return dtype.str if dtype.subdtype is None else [_spelt(dtype.subdtype[0]), list(dtype.subdtype[1])]


def _dtype(spelt: Any) -> np.dtype[Any]:
    if isinstance(spelt, dict):
        spelt = {**spelt, "formats": [_dtype(each) for each in spelt["formats"]]}
    elif not isinstance(spelt, str):
        spelt = _dtype(spelt[0]), tuple(spelt[1])
    found: np.dtype[Any] = np.dtype(spelt)
    return found
