"""``files``: whole files as samples, as bytes.

source = files("/lustre/set", decode=parse, suffixes=(".bin",))
source = files("/lustre/photos", labels="folder")            # (b"...", 3): the number of the folder it lies in
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, final

import numpy as np

from farandole.data.formats.reading import Index
from farandole.data.formats.source import Decode, Source, load_index
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import Where, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError, UsageError

Self = TypeVar("Self", bound="FilesSource")


class FilesSource(Source):
    """One sample per file, or a pair of the sample and its class number; ``path_of`` names the file."""

    format: ClassVar[str]

    def __init__(
        self, manifest: Manifest, decode: Decode | None = None, store: ByteStore | None = None, **options: Any
    ) -> None:
        super().__init__(manifest, decode, store)
        self.options = options

    @abstractmethod
    def content(self, data: bytearray, path: str) -> Any:
        """Sample decoded from the bytes of a file."""

    @property
    def classes(self) -> list[str]:
        """Names of the classes by number: of the folders right below the root, sorted; none without labels."""
        return list(self.manifest.details.get("classes", ()))

    def sample(self, index: int) -> Any:
        [data] = self.parts(index)
        content = self.content(data, self.path_of(index))
        labels = self.manifest.details.get("labels")
        return content if labels is None else (content, int.from_bytes(labels[4 * index : 4 * index + 4], "little"))

    @classmethod
    def opened(
        cls: type[Self],
        path: Where,
        decode: Decode | None,
        index: Index,
        suffixes: Sequence[str],
        labels: str | None = None,
        **options: Any,
    ) -> Self:
        """Source of listed files, or of the files of an index."""
        if index is not None:
            return cls(load_index(index, cls.format), decode, **options)
        entries = list_files(path, suffixes)
        details = {} if labels is None else _labelled(path, [entry.path for entry in entries], labels)
        field = Field.whole_files([entry.size for entry in entries])
        return cls(Manifest.of(cls.format, root_of(path), entries, [field], details), decode, **options)


@final
class PlainFilesSource(FilesSource):
    """Files as bytes, whatever they hold."""

    format: ClassVar[str] = "files"

    def content(self, data: bytearray, path: str) -> bytes:
        return bytes(data)


def files(
    path: Where,
    decode: Decode | None = None,
    *,
    suffixes: Sequence[str] = (),
    labels: str | None = None,
    index: Index = None,
) -> PlainFilesSource:
    """Files as samples of ``bytes``, sorted by path; hidden files are left out.

        source = files("/lustre/set", decode=lambda content: content.decode())
        source[0], source.path_of(0)

    ``labels="folder"``: a sample is a pair of bytes and class, the number of the folder right below ``path``.
    """
    return PlainFilesSource.opened(path, decode, index, suffixes, labels)


def _labelled(path: Where, paths: Sequence[str], labels: str) -> dict[str, Any]:
    if labels != "folder" or not isinstance(path, str | os.PathLike):
        raise UsageError(f"labels={labels!r}: give 'folder', for one folder that holds a folder for each class")
    root = root_of(path).rstrip("/") + "/"
    folders = [each.removeprefix(root).rpartition("/")[0].partition("/")[0] for each in paths]
    if "" in folders:
        raise DataError(f"{paths[folders.index('')]} lies in no folder below {root}: move it, or leave out labels=")
    classes, numbers = np.unique(folders, return_inverse=True)
    return {"classes": [str(name) for name in classes], "labels": numbers.astype("<i4").tobytes()}
