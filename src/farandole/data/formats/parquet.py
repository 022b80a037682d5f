"""``parquet``: rows of Parquet and Arrow files (IPC, Feather 2) as dicts, by pyarrow.

    source = parquet("/lustre/set", columns=["image", "label"])      # {"image": uint8 array, "label": 3}

A row group or record batch is decoded as a whole, and each thread keeps 64 MiB of them. The index reads only the
footers of Parquet files, but Arrow files whole.

Threads. pyarrow's threads are not used: they do not survive a fork, and our threads read several groups at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from farandole.data.formats.reading import Index, ThreadCache, place, translated
from farandole.data.formats.source import Decode, ForkGuard, Source, load_index
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import Where, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

SUFFIXES = (".parquet", ".parq", ".pq", ".arrow", ".arrows", ".feather", ".ipc")
KIND, EXTRA = "Parquet or Arrow", "data-formats"
FOOT = 2**16
"""Bytes that pyarrow reads at the end of a file to find its footer."""

_FORKS = ForkGuard("pyarrow")


@final
class ParquetSource(Source):
    """Rows of Parquet and Arrow files: a dict by column. pyarrow releases the GIL."""

    def __init__(
        self, manifest: Manifest, decode: Decode | None = None, store: ByteStore | None = None, columns: Any = None
    ) -> None:
        super().__init__(manifest, decode, store)
        self._columns = None if columns is None else list(columns)
        self.reopen()

    def reopen(self) -> None:
        self._blocks = ThreadCache()

    def sample(self, index: int) -> dict[str, Any]:
        block, row = place(self.manifest.fields[0], index)
        columns = self._blocks.get(block, lambda: self._read(block))
        return {name: column[row] for name, column in columns.items()}

    def _read(self, block: int) -> tuple[dict[str, Any], int]:
        files = self.manifest.fields[0].files
        path, number = self.manifest.paths[int(files[block])], block - int(np.searchsorted(files, files[block]))
        with translated(f"{path}: row group {number}", KIND, EXTRA):
            table = _table(
                _opened(self.store, path, self.manifest.details["kinds"][int(files[block])]), number, self._columns
            )
            if missing := {*(self._columns or ())} - {*table.column_names}:
                raise DataError(f"{path} has no columns {sorted(missing)}: it has {', '.join(table.column_names)}")
            rows = int(self.manifest.fields[0].first[block + 1] - self.manifest.fields[0].first[block])
            if any(len(table[name]) != rows for name in table.column_names):
                raise DataError(
                    f"{path}: row group {number} has not the {rows} rows of its footer: copy the file again"
                )
            return {name: _column(table[name].combine_chunks()) for name in table.column_names}, int(table.nbytes)


def parquet(
    path: Where, decode: Decode | None = None, *, columns: Sequence[str] | None = None, index: Index = None
) -> ParquetSource:
    """Rows of Parquet or Arrow files as dicts by column, in the order of the files' names.

        parquet("/lustre/set", columns=["image", "label"])[0]

    Numbers are NumPy scalars of the column's type, times ``datetime64`` (UTC), lists of numbers arrays; strings, bytes,
    decimals, structs and other lists are Python objects. A null is ``None``, never a number. Checksums of pages are
    verified if a file has them. Raises ``DataError`` for damaged and for encrypted files.
    """
    manifest = load_index(index, "parquet") if index is not None else _listed(path)
    return ParquetSource(manifest, decode, columns=columns)


def _listed(path: Where) -> Manifest:
    entries = list_files(path, SUFFIXES)
    store = store_for(entries[0].path)
    blocks, kinds = [], []
    for file, (name, size, _) in enumerate(entries):
        with translated(name, KIND, EXTRA):
            kinds.append(_kind(store, name, size))
            found = _extents(_opened(store, name, kinds[-1]), size)
        foot = max((offset + nbytes for _, offset, nbytes in found if nbytes < size), default=0)
        foot = max(0, min(foot, size - FOOT))
        blocks += [(file, *each, foot, size - foot) for each in found]
    store.close()
    files, counts, base, nbytes, feet, rest = np.array(blocks, np.int64).reshape(-1, 6).T
    still = np.zeros(len(files))
    fields = [Field.regular(files, counts, base, still, nbytes), Field.regular(files, counts, feet, still, rest)]
    return Manifest.of("parquet", root_of(path), entries, fields, {"kinds": kinds})


def _kind(store: ByteStore, path: str, size: int) -> str:
    """Kind of a file by its first bytes: ``"parquet"``, or ``"file"`` or ``"stream"`` of Arrow."""
    magic = bytes(store.read(path, 0, min(6, size)))
    for known, kind in ((b"PAR1", "parquet"), (b"ARROW1", "file"), (b"\xff\xff\xff\xff", "stream")):
        if magic.startswith(known):
            return kind
    is_encrypted = magic.startswith(b"PARE")
    raise DataError(
        f"{path} {'is encrypted: decrypt it' if is_encrypted else 'is neither Parquet nor Arrow: leave it out'}"
    )


def _opened(store: ByteStore, path: str, kind: str) -> Any:
    """Reader of pyarrow for a file."""
    import pyarrow as pa
    from pyarrow import ipc
    from pyarrow.parquet import ParquetFile

    _FORKS.enter()
    file = pa.PythonFile(store.open(path), mode="r")
    if kind == "parquet":
        return ParquetFile(file, page_checksum_verification=True, pre_buffer=False)
    opener = ipc.open_file if kind == "file" else ipc.open_stream
    return opener(file, options=ipc.IpcReadOptions(use_threads=False))


def _extents(file: Any, size: int) -> list[tuple[int, int, int]]:
    """Rows, offset and length of each block. A record batch has no known place: it counts as the whole file."""
    if not hasattr(file, "read_row_group"):
        return [(batch.num_rows, 0, size) for batch in _batches(file)]
    found = []
    for group in (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)):
        chunks = [group.column(number) for number in range(group.num_columns)]
        begins = [min(each.dictionary_page_offset or each.data_page_offset, each.data_page_offset) for each in chunks]
        ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
        found.append((group.num_rows, min(begins, default=0), max(ends, default=0) - min(begins, default=0)))
    return found


def _batches(file: Any) -> list[Any]:
    is_stream = not hasattr(file, "get_batch")
    return list(file) if is_stream else [file.get_batch(number) for number in range(file.num_record_batches)]


def _table(file: Any, number: int, columns: list[str] | None) -> Any:
    import pyarrow as pa

    if hasattr(file, "read_row_group"):
        return file.read_row_group(number, columns, use_threads=False)
    batch = file.get_batch(number) if hasattr(file, "get_batch") else list(file)[number]
    table = pa.Table.from_batches([batch])
    return table if columns is None else table.select([name for name in columns if name in table.column_names])


@final
class _Numbers:
    """Numbers of a column by row, or arrays of them if ``ends`` has the ends of the rows."""

    def __init__(self, array: Any, values: Any, ends: Any = None) -> None:
        import pyarrow as pa
        from pyarrow import compute

        self._nulls = np.asarray(array.is_null()) if array.null_count else None
        if values.null_count and (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
            values = compute.fill_null(values, pa.scalar(0).cast(values.type))  # NaN would make floats of integers
        self._values, self._ends = values.to_numpy(zero_copy_only=False), None if ends is None else np.asarray(ends)

    def __getitem__(self, row: int) -> Any:
        if self._nulls is not None and self._nulls[row]:
            return None
        return self._values[row] if self._ends is None else self._values[self._ends[row] : self._ends[row + 1]]


def _column(array: Any) -> _Numbers | list[Any]:
    """Values of a column by row."""
    import pyarrow as pa
    from pyarrow import types

    array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    array = array.dictionary_decode() if types.is_dictionary(array.type) else array
    kind = array.type
    if _is_plain(kind):
        return _Numbers(array, array)
    is_fixed = types.is_fixed_size_list(kind)
    if (is_fixed or types.is_list(kind) or types.is_large_list(kind)) and _is_plain(kind.value_type):
        values = array.flatten() if is_fixed else array.values  # if fixed, without the values of null lists
        if not values.null_count:
            counts = np.cumsum(np.asarray(array.is_valid())) * kind.list_size if is_fixed else None
            return _Numbers(array, values, array.offsets if counts is None else np.concatenate([[0], counts]))
    found: list[Any] = array.to_pylist()
    return found


def _is_plain(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_primitive(kind)) and not types.is_time(kind) and not types.is_interval(kind)
