"""``RecordsSource``: samples that lie one after the other in files, plain or compressed as a whole.

    class TFRecordSource(RecordsSource): ...      # says where records begin, and what one is

Threads. A few threads index files, and share only the store. A compressed file is one block: it is decompressed as a
whole, and each reading thread caches some of them for itself (``ThreadCache``), so that no thread waits for another.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from farandole.data.formats.reading import Index, ThreadCache, Window, compression_of, place, unpacked
from farandole.data.formats.source import Decode, Source, load_index
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import FileEntry, Where, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

Read: TypeAlias = Callable[[int, int], bytes]
"""Bytes of a file, by offset and length; fewer where it ends."""
Extent: TypeAlias = tuple[int, int]
"""Offset and length."""
Self = TypeVar("Self", bound="RecordsSource")

THREADS = 8
"""Files that are indexed at a time."""


class RecordsSource(Source):
    """Records of files. ``options`` are arguments of the format's ``record``."""

    format: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that count in a folder; empty: all files."""
    most_unpacked: ClassVar[int] = -1
    """Bytes that a compressed file may hold; -1: any number."""

    def __init__(
        self, manifest: Manifest, decode: Decode | None = None, store: ByteStore | None = None, **options: Any
    ) -> None:
        super().__init__(manifest, decode, store)
        self.options = options
        self._compressed = frozenset(manifest.details["compressed"])
        self.reopen()

    @classmethod
    @abstractmethod
    def is_plain(cls, head: bytes) -> bool:
        """True if a file with these first bytes is not compressed."""

    @classmethod
    @abstractmethod
    def extents(cls, read: Read, size: int, path: str, details: Mapping[str, Any]) -> Iterable[Extent]:
        """Place of each sample in the ``size`` bytes that ``read`` returns. Raises ``DataError`` for damage."""

    @abstractmethod
    def record(self, data: bytes, where: str) -> Any:
        """Decode a sample from its bytes; ``where`` names it in errors."""

    @classmethod
    def opened(
        cls: type[Self], path: Where, decode: Decode | None, index: Index, details: Mapping[str, Any], **options: Any
    ) -> Self:
        """Source of listed files, or of the files of an index."""
        return cls(
            load_index(index, cls.format) if index is not None else cls._listed(path, details), decode, **options
        )

    def reopen(self) -> None:
        self._unpacked = ThreadCache()

    def sample(self, index: int) -> Any:
        [(file, offset, nbytes)] = self.manifest.extents(index)
        path, number = self.manifest.paths[file], place(self.manifest.fields[0], index)[1]
        if file not in self._compressed:
            data = bytes(self.store.read(path, offset, nbytes))
        else:
            whole, extents = self._unpacked.get(file, lambda: self._unpack(path, nbytes))
            offset, nbytes = extents[number]
            data = whole[offset : offset + nbytes]
        return self.record(data, f"{path}: sample {number} at byte {offset}")

    def _unpack(self, path: str, nbytes: int) -> tuple[tuple[bytes, list[Extent]], int]:
        data = unpacked(self.store.read(path, 0, nbytes), path, self.most_unpacked)
        found = list(self.extents(lambda at, count: data[at : at + count], len(data), path, self.manifest.details))
        return (data, found), len(data)

    @classmethod
    def _listed(cls, path: Where, details: Mapping[str, Any]) -> Manifest:
        entries = list_files(path, cls.suffixes)
        store = store_for(entries[0].path)
        with ThreadPoolExecutor(min(THREADS, len(entries)), "index") as threads:
            found = list(threads.map(lambda entry: cls._index(store, entry, details), entries))
        store.close()
        extents = np.concatenate([each for _, each in found])
        if not len(extents):
            raise DataError(f"{entries[0].path} and all others ({len(entries)} files) hold no sample: give other files")
        field = Field.listed(np.arange(len(found)), [len(each) for _, each in found], extents[:, 0], extents[:, 1])
        compressed = [file for file, (is_compressed, _) in enumerate(found) if is_compressed]
        return Manifest.of(cls.format, root_of(path), entries, [field], {**details, "compressed": compressed})

    @classmethod
    def _index(
        cls, store: ByteStore, entry: FileEntry, details: Mapping[str, Any]
    ) -> tuple[bool, npt.NDArray[np.int64]]:
        read = Window(store, entry.path, entry.size)
        head = read(0, 512)
        is_compressed = not cls.is_plain(head) and compression_of(head) != ""
        if is_compressed:
            data = unpacked(read.whole(), entry.path, cls.most_unpacked)
            inside = cls.extents(lambda at, count: data[at : at + count], len(data), entry.path, details)
            extents = [(0, entry.size) for _ in inside]
        else:
            extents = list(cls.extents(read, entry.size, entry.path, details))
        return is_compressed, np.array(extents, np.int64).reshape(-1, 2)
