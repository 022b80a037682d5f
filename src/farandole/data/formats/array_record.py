"""``array_record``: records of ArrayRecord files, by Google's package.

    source = array_record("/lustre/set/train.array_record*", decode=parse)

Threads. A reader has a position in its file, so each thread has a few readers of its own.
"""

from __future__ import annotations

from typing import Any, final

from farandole.data.formats.reading import Index, ThreadCache, place, translated
from farandole.data.formats.source import Decode, ForkGuard, Source, load_index
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import Where, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

OPEN = 4
"""Files that a thread keeps open."""

KIND = "ArrayRecord", "data-formats"

_FORKS = ForkGuard("array_record")


@final
class ArrayRecordSource(Source):
    """Records of ArrayRecord files, as bytes. The package releases the GIL."""

    def __init__(self, manifest: Manifest, decode: Decode | None = None, store: ByteStore | None = None) -> None:
        super().__init__(manifest, decode, store)
        self.reopen()

    def reopen(self) -> None:
        self._readers = ThreadCache(OPEN)

    def sample(self, index: int) -> bytes:
        block, number = place(self.manifest.fields[0], index)
        path = self.manifest.paths[int(self.manifest.fields[0].files[block])]
        with translated(f"{path}: record {number}", *KIND):
            reader = self._readers.get(path, lambda: (_opened(self.store, path), 1))
            [record] = reader.read([number])
            _check(reader)
            return bytes(record)


def array_record(path: Where, decode: Decode | None = None, *, index: Index = None) -> ArrayRecordSource:
    """Records of ArrayRecord files as ``bytes``, in the order of the files' names.

        array_record("/lustre/set/train.array_record-*")[0]

    The package reads only files of this machine, on shared storage or staged; URLs are refused.
    Raises ``DataError`` for damaged files.
    """
    return ArrayRecordSource(load_index(index, "array_record") if index is not None else _listed(path), decode)


def _listed(path: Where) -> Manifest:
    entries = list_files(path)
    store = store_for(entries[0].path)
    counts = []
    for entry in entries:
        with translated(entry.path, *KIND):
            counts.append(_opened(store, entry.path).num_records())
    store.close()
    field = Field.whole_files([entry.size for entry in entries], counts)
    return Manifest.of("array_record", root_of(path), entries, [field])


def _opened(store: ByteStore, path: str) -> Any:
    """The package's reader of a file; it closes the file when its last reference is dropped."""
    local = store.local_path(path)
    if local is None:
        raise DataError(f"{path} is no file of this machine, and array_record reads such alone: stage it first")
    from array_record.python import array_record_module

    _FORKS.enter()
    reader = array_record_module.ArrayRecordReader(local, "readahead_buffer_size:0,max_parallelism:0")
    _check(reader)
    return reader


def _check(reader: Any) -> None:
    """Raise an error after a failure: the package may only record it, and return empty records."""
    if not reader.ok():
        raise ValueError("the reader is not ok() any more")
