"""``Manifest``: the files of a data set and where each sample lies in them, listed once and mapped into memory.

    manifest = Manifest.of("tfrecord", "/lustre/set", entries, [field], {"compression": ""})
    manifest.save("/lustre/set/.farandole-index")
    Manifest.load("/lustre/set/.farandole-index").extents(17)       # [(0, 1234, 560)]: file, offset, bytes

On disk: eight bytes of magic, the length of the header, a checksum of everything that follows, the header (msgpack:
format, root, details, and the place of each column), then the columns in sequence, aligned. ``load`` maps the file, so
that the ranks of a host share one copy. A writer renames a temporary file, so no reader sees an incomplete one.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final, overload

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from farandole.data.storage.fields import Field, Integers
from farandole.data.storage.listing import FileEntry
from farandole.errors import DataError

MAGIC = b"FRNDIDX1"
FRONT = 24
"""Bytes before the header."""
ALIGNED_TO = 64


@final
class _Header(msgspec.Struct, frozen=True):
    """Everything of a manifest but its columns; for each column: dtype, place after the header, and number of items."""

    format: str
    root: bytes
    fields: int
    details: dict[str, Any]
    columns: dict[str, tuple[str, int, int]]


REMEMBERED = 4096
"""Number of paths that stay decoded."""


@final
class Paths(Sequence[str]):
    """Paths of files below a root, decoded on access: millions of paths are one block of memory, and some text."""

    def __init__(self, root: str, names: npt.NDArray[np.uint8], ends: Integers) -> None:
        self._root, self._names, self._ends = root, names, ends
        self._known: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Paths, (self._root, self._names, self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if (known := self._known.get(index)) is not None:
            return known
        at = range(len(self))[index]
        begin = int(self._ends[at - 1]) if at else 0
        name = os.fsdecode(self._names[begin : int(self._ends[at])].tobytes())
        path = name if name.startswith("/") or "://" in name else f"{self._root.rstrip('/')}/{name}"
        if len(self._known) < REMEMBERED:
            self._known[index] = path
        if len(self._numbers) >= 2 * REMEMBERED:
            self._numbers = {known: number for number, known in self._known.items()}
        self._numbers[path] = at
        return path

    def number_of(self, path: str) -> int | None:
        """Number of a path that was decoded lately; ``None`` for any other, as a table of millions takes too much."""
        return self._numbers.get(path)

    def __iter__(self) -> Iterator[str]:
        return (self[each] for each in range(len(self)))


@final
class Manifest:
    """Files and samples of a data set. All ``fields`` have the same number of samples."""

    def __init__(
        self, format_name: str, root: str, columns: Mapping[str, npt.NDArray[Any]], fields: int, details: dict[str, Any]
    ) -> None:
        self.format, self.root, self.details = format_name, root, details
        self._columns = dict(columns)
        self.sizes: Integers = self._columns["sizes"]
        self.mtimes_ns: Integers = self._columns["mtimes_ns"]
        self.sums: npt.NDArray[np.uint64] = self._columns["sums"]
        """Checksum (xxh3_64) of each piece, or empty if they were not requested."""
        self.paths = Paths(root, self._columns["names"], self._columns["ends"])
        self.fields = tuple(
            Field(**{name: self._columns[f"{number}.{name}"] for name in Field.COLUMNS}) for number in range(fields)
        )
        self._digest = ""

    @classmethod
    def of(
        cls,
        format_name: str,
        root: str,
        entries: Sequence[FileEntry],
        fields: Sequence[Field],
        details: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Manifest of listed files. Raises ``DataError`` if fields have different numbers of samples."""
        if len({len(field) for field in fields}) > 1:
            raise DataError(
                f"the parts of the samples in {root} differ in number: {[len(field) for field in fields]}; "
                "give keys of the same length"
            )
        prefix = root.rstrip("/") + "/"
        names = [os.fsencode(entry.path.removeprefix(prefix)) for entry in entries]
        columns: dict[str, npt.NDArray[Any]] = {
            "names": np.frombuffer(b"".join(names), np.uint8),
            "ends": np.cumsum([len(name) for name in names], dtype=np.int64),
            "sizes": np.array([entry.size for entry in entries], np.int64),
            "mtimes_ns": np.array([entry.mtime_ns for entry in entries], np.int64),
            "sums": np.empty(0, np.uint64),
        }
        for number, field in enumerate(fields):
            columns |= {f"{number}.{name}": column for name, column in field.columns().items()}
        return cls(format_name, root, columns, len(fields), dict(details or {}))

    def version_of(self, path: str) -> tuple[int, int] | None:
        """Size of a file and time of its last change in ns, as they were listed; ``path`` is one of ``paths``."""
        file = self.paths.number_of(path)
        return None if file is None else (int(self.sizes[file]), int(self.mtimes_ns[file]))

    def with_sums(self, sums: npt.NDArray[np.uint64]) -> Manifest:
        """The same manifest with checksums of its pieces."""
        return Manifest(self.format, self.root, {**self._columns, "sums": sums}, len(self.fields), self.details)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.fields[0]) if self.fields else 0

    @property
    def nbytes(self) -> int:
        """Number of bytes of all files."""
        return int(self.sizes.sum())

    @property
    def digest(self) -> str:
        """Digest of this data set, as listed: 32 hex digits."""
        if not self._digest:
            digest = xxhash.xxh3_128(msgspec.msgpack.encode(self._front(), order="sorted"))
            for name in sorted(set(self._columns) - {"sums"}):
                column = np.ascontiguousarray(self._columns[name])
                digest.update(f"{name} {len(column)}".encode())
                digest.update(column.data)
            self._digest = digest.hexdigest()
        return self._digest

    def _front(self) -> tuple[str, bytes, dict[str, Any]]:
        return self.format, os.fsencode(self.root), self.details  # names of folders need not be Unicode

    def sum_of(self, piece: int) -> int | None:
        """Checksum of a piece; ``None`` if the manifest has none."""
        return int(self.sums[piece]) if len(self.sums) else None

    def extents(self, sample: int) -> list[tuple[int, int, int]]:
        """File, offset and length of each part of a sample."""
        return [field.extent(sample) for field in self.fields]

    def encode(self) -> bytes:
        """The manifest as the bytes that ``save`` writes and ``decode`` reads."""
        places, at = {}, 0
        for name, column in self._columns.items():
            places[name] = (column.dtype.str, at, len(column))
            at += -(-column.nbytes // ALIGNED_TO) * ALIGNED_TO
        name, root, details = self._front()
        encoded = msgspec.msgpack.encode(_Header(name, root, len(self.fields), details, places))
        parts = [encoded, bytes(-(FRONT + len(encoded)) % ALIGNED_TO)]
        for column in self._columns.values():
            parts += [column.tobytes(), bytes(-column.nbytes % ALIGNED_TO)]
        body = b"".join(parts)
        return b"".join([MAGIC, len(encoded).to_bytes(8, "little"), xxhash.xxh3_64_digest(body), body])

    @classmethod
    def decode(cls, text: bytes | memoryview | mmap.mmap, name: str = "the index") -> Manifest:
        """Parse the bytes of ``encode``; columns are views of these bytes. Raises ``DataError`` for invalid bytes."""
        view = memoryview(text)
        if bytes(view[: len(MAGIC)]) != MAGIC:
            raise DataError(f"{name} is no index of a data set: make one with 'farandole data index FOLDER'")
        length = int.from_bytes(view[8:16], "little")
        if xxhash.xxh3_64_digest(view[FRONT:]) != bytes(view[16:FRONT]):
            raise DataError(f"{name} is damaged: make it again with 'farandole data index FOLDER'")
        try:
            header = msgspec.msgpack.decode(view[FRONT : FRONT + length], type=_Header)
            begin = -(-(FRONT + length) // ALIGNED_TO) * ALIGNED_TO
            columns = {
                each: np.frombuffer(view, np.dtype(dtype), count, begin + at)
                for each, (dtype, at, count) in header.columns.items()
            }
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise DataError(f"{name} is damaged ({error}): make it again with 'farandole data index FOLDER'") from error
        return cls(header.format, os.fsdecode(header.root), columns, header.fields, header.details)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a file, whole or not at all. Raises ``DataError`` if the file cannot be written."""
        target = Path(path)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.new")  # pids of two hosts may be equal
        try:
            aside.write_bytes(self.encode())
            aside.replace(target)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise DataError(f"{target} cannot be written ({error.strerror}): give another place") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, is_held: bool = False) -> Manifest:
        """Map the manifest in a file into memory. Raises ``DataError`` if the file is no manifest.

        With ``is_held`` this process holds a shared ``flock`` on the file as long as the manifest lives.
        """
        try:
            with open(path, "rb") as file:
                if is_held:
                    fcntl.flock(file, fcntl.LOCK_SH)  # the mapping duplicates the descriptor, and so keeps the lock
                    if not os.fstat(file.fileno()).st_nlink:
                        raise FileNotFoundError(errno.ENOENT, "it was deleted just now")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DataError(f"{os.fspath(path)} cannot be read: {error}") from error
        return cls.decode(mapped, os.fspath(path))
