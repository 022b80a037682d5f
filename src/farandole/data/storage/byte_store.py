"""``ByteStore``: the bytes of files on shared storage, behind a URL, or in the cache of a host.

    store = SharedFiles()
    store.read("/lustre/set/part-0.h5", 512, 100)
    h5py.File(store.open("/lustre/set/part-0.h5"))

Threads. Any thread reads at any time. ``SharedFiles`` keeps some descriptors open: ``_lock`` guards their table. A
descriptor that is dropped from the table is closed when the last thread that reads from it has released it, and not
before: otherwise its number could be reused for another file in the middle of a read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

from farandole.data.storage.waits import during
from farandole.errors import DataError
from farandole.native.rows import read_rows

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_OPEN = 64
"""Descriptors that a store keeps open."""

T = TypeVar("T")

Listed: TypeAlias = Callable[[str], "tuple[int, int] | None"]
"""Size and time of change (ns; 0: unknown) of a file as it was listed; ``None`` for a file that is not known."""


@final
class Rows:
    """Rows of ``nbytes`` bytes each, one after the other in ``memory``."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, memory: memoryview, nbytes: int) -> None:
        self.memory, self.nbytes = memory, nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def __getitem__(self, row: int) -> memoryview:
        return self.memory[row * self.nbytes : (row + 1) * self.nbytes]

    def read(self, rows: Sequence[int], fds: Sequence[int], offsets: Sequence[int]) -> list[int]:
        """Read these rows, each from a descriptor and an offset; returns those that could not be read in full."""
        addresses = [self.address + row * self.nbytes for row in rows]
        return [rows[failed] for failed in read_rows(fds, offsets, addresses, self.nbytes)]


class ByteStore(ABC):
    """Read-only bytes of files by path. Any thread may read; a pickled copy opens files anew."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Number of bytes of a file. Raises ``DataError`` if there is no such file."""

    @abstractmethod
    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes of a file from ``offset`` on.

        Raises ``DataError``, naming file and offset, if the file is shorter or cannot be read.
        """

    def read_rows(self, paths: Sequence[str], offsets: Sequence[int], rows: Rows) -> None:
        """Fill all ``rows``, each from a path and an offset, as ``read_into`` does."""
        for row, (path, offset) in enumerate(zip(paths, offsets, strict=True)):
            self.read_into(path, offset, rows[row])

    def read(self, path: str, offset: int = 0, nbytes: int = -1) -> bytearray:
        """Bytes of a file from ``offset`` on; ``nbytes=-1``: up to its end."""
        buffer = bytearray(max(0, self.size(path) - offset) if nbytes < 0 else nbytes)
        self.read_into(path, offset, memoryview(buffer))
        return buffer

    def local_path(self, path: str) -> str | None:  # noqa: B027 (a store may have none)
        """Path of a real file with exactly these bytes, which a library may open; ``None``: use ``open``."""

    def version(self, path: str) -> tuple[int, int] | None:  # noqa: B027 (a store need not know)
        """Size of a file and time of its last change in ns; ``None`` if the query would take as long as a read."""

    def open(self, path: str) -> StoredFile:
        """A file object over ``read_into``."""
        return StoredFile(self, path)

    def close(self) -> None:  # noqa: B027 (a store may hold nothing)
        """Free descriptors; a later read opens files again."""


@final
class StoredFile(io.RawIOBase):
    """File object over the bytes of a store, for libraries that need one. It has no thread and no buffer."""

    def __init__(self, store: ByteStore, path: str) -> None:
        self.name = path
        self._store, self._size, self._at = store, store.size(path), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}.get(whence)
        if base is None or base + offset < 0:
            raise OSError(errno.EINVAL, "seek before the beginning", self.name)
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        if count:
            self._store.read_into(self.name, self._at, view[:count])
            self._at += count
        return count


@final
class SharedFiles(ByteStore):
    """Files in place. After ``ESTALE``, a stale handle of a file server, the file is opened once more.

    ``listed`` returns the size of a file and the time of its last change as they were listed. A file that has others
    when it is opened is refused: offsets in it may lead to bytes of another meaning.
    """

    def __init__(self, listed: Listed | None = None) -> None:
        self._listed = listed
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFiles, (self._listed,)

    def size(self, path: str) -> int:
        return self._twice(path, 0, lambda fd: os.fstat(fd).st_size)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        with during("shared storage", path, len(buffer)):
            self._twice(path, offset, partial(_fill, path=path, offset=offset, buffer=buffer))

    def read_rows(self, paths: Sequence[str], offsets: Sequence[int], rows: Rows) -> None:
        with during("shared storage", paths[0], len(rows.memory)):
            for begin in range(0, len(paths), MOST_OPEN):  # each part opens no more files than may be open
                part = range(begin, min(begin + MOST_OPEN, len(paths)))
                for row in self._failed(part, paths, offsets, rows):
                    self.read_into(paths[row], offsets[row], rows[row])

    def _failed(self, part: range, paths: Sequence[str], offsets: Sequence[int], rows: Rows) -> Sequence[int]:
        """Read some rows; returns those that could not be read in full: reading one alone mends or names the reason."""
        try:
            files = {path: self._opened(path) for path in {paths[row] for row in part}}
        except OSError:
            return part
        return rows.read(part, [files[paths[row]].fd for row in part], [offsets[row] for row in part])

    def version(self, path: str) -> tuple[int, int] | None:
        found = self._twice(path, 0, os.fstat)
        return found.st_size, found.st_mtime_ns

    def local_path(self, path: str) -> str | None:
        if self._listed is not None:
            with contextlib.suppress(OSError):  # whoever opens it says why
                self._require_listed(path, os.stat(path))
        return path

    def _require_listed(self, path: str, found: os.stat_result) -> None:
        listed = None if self._listed is None else self._listed(path)
        if listed is not None:
            require_unchanged(path, listed, (found.st_size, found.st_mtime_ns))

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _twice(self, path: str, offset: int, use: Callable[[int], T]) -> T:
        for attempt in (1, 2):
            try:
                file = self._opened(path)
                return use(file.fd)
            except OSError as error:
                with self._lock:
                    self._open.pop(path, None)
                if error.errno != errno.ESTALE or attempt == 2:
                    raise unreadable(path, offset, error) from error
        raise AssertionError

    def _opened(self, path: str) -> _OpenFile:
        if self._pid != os.getpid():  # a fork: another thread of the parent may have held the lock
            self._open, self._lock, self._pid = OrderedDict(), threading.Lock(), os.getpid()
        with self._lock:
            if (file := self._open.get(path)) is not None:
                self._open.move_to_end(path)
                return file
        file = _OpenFile(path)
        if self._listed is not None:
            self._require_listed(path, os.fstat(file.fd))
        with self._lock:
            self._open[path] = file
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return file


@final
class _OpenFile:
    """A descriptor, closed when neither the table nor a reading thread refers to this object any more."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound: at exit ``os`` may be cleared
        if self.fd >= 0:
            close(self.fd)


def _fill(fd: int, path: str, offset: int, buffer: memoryview) -> None:
    read_fully(fd, path, offset, buffer)


def read_fully(fd: int, path: str, offset: int, buffer: memoryview) -> None:
    """Fill ``buffer`` from a descriptor. Raises ``DataError`` if the file ends too early."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if count == 0:
            raise DataError(
                f"{path} ends at byte {offset + done}, and {len(buffer) - done} more were to be read: it is truncated, "
                "or has changed since it was listed; copy it again, or list the folder anew"
            )
        done += count


def require_unchanged(path: str, listed: tuple[int, int], found: tuple[int, int]) -> None:
    """Raise ``DataError`` if a file has another size, or time of change in ns, than it was listed with (0: unknown)."""
    if found != (listed[0], listed[1] or found[1]):
        raise DataError(
            f"{path} has changed since it was listed: from {listed[0]} bytes of {_moment(listed[1])} to "
            f"{found[0]} bytes of {_moment(found[1])}; list it again (farandole data index), and leave it as it is"
        )


def _moment(time_ns: int) -> str:
    if not time_ns:
        return "an unknown time"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(time_ns // 10**9))}.{time_ns % 10**9:09}"


def unreadable(path: str, offset: int, error: OSError) -> DataError:
    """Error for a file that the system cannot open or read."""
    return DataError(f"{path} cannot be read at byte {offset}: {error.strerror or error}")
