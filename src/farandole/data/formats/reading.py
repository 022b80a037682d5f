"""Helpers of readers: windows over small parts, decompression, a cache per thread, translation of library errors.

with translated(path, "TIFF"):
    pixels = tifffile.imread(file)
"""

from __future__ import annotations

import bisect
import bz2
import gzip
import io
import logging
import lzma
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, Union, final

from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Field
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError
from farandole.events import logger

Index: TypeAlias = Union[str, "os.PathLike[str]", Manifest, None]
"""A stored manifest, its file, or ``None``: list the files."""

NEAR, WINDOW = 16 * 1024, 64 * 1024
KEPT_BYTES = 64 * 2**20
"""Bytes of decompressed files and row groups that a thread keeps; at least one entry stays."""


def place(field: Field, index: int) -> tuple[int, int]:
    """Block of a sample, and the number of the sample in the block."""
    block = bisect.bisect_right(field.first, index) - 1  # faster than NumPy's for one value
    return block, index - int(field.first[block])


@final
class Window:
    """Reads small parts of a file, in ascending order: near parts with one read, far parts one by one.

    Window(store, path, size)(0, 12)
    """

    def __init__(self, store: ByteStore, path: str, size: int) -> None:
        self._store, self._path, self._size = store, path, size
        self._bytes, self._begin, self._asked = b"", 0, 0

    def __call__(self, at: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``at`` on, or fewer at the end of the file."""
        begin = at - self._begin
        if begin < 0 or begin + nbytes > len(self._bytes):
            count = max(nbytes, WINDOW if 0 <= at - self._asked < NEAR else 0)
            self._bytes = bytes(self._store.read(self._path, at, max(0, min(count, self._size - at))))
            self._begin, begin = at, 0
        self._asked = at
        return self._bytes[begin : begin + nbytes]

    def whole(self) -> bytes:
        """All bytes of the file; bytes of a first part are not read again."""
        known = self._bytes if not self._begin else b""
        return known + bytes(self._store.read(self._path, len(known), self._size - len(known)))


@final
class ThreadCache:
    """Values that each thread caches for itself, up to a number of bytes, but at least one; a pickled copy is empty."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit, self._local = limit, threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadCache, (self._limit,)

    def get(self, key: Any, make: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key; if this thread does not have it, ``make`` returns it with its number of bytes."""
        kept: OrderedDict[Any, tuple[Any, int]] = self._local.__dict__.setdefault("kept", OrderedDict())
        if key not in kept:
            kept[key] = make()
        kept.move_to_end(key)
        while len(kept) > 1 and sum(nbytes for _, nbytes in kept.values()) > self._limit:
            kept.popitem(last=False)
        return kept[key][0]


def compression_of(head: bytes | bytearray) -> str:
    """``"gzip"``, ``"zlib"``, ``"bzip2"``, ``"xz"``, ``"zstd"`` or ``""``, by the first bytes of a file."""
    for name, magic in (("gzip", b"\x1f\x8b"), ("bzip2", b"BZh"), ("xz", b"\xfd7zXZ\0"), ("zstd", b"\x28\xb5\x2f\xfd")):
        if head[:6].startswith(magic):
            return name
    is_zlib = len(head) > 1 and head[0] & 15 == 8 and head[0] >> 4 < 8 and int.from_bytes(head[:2], "big") % 31 == 0
    return "zlib" if is_zlib else ""


def unpacked(data: bytes | bytearray, path: str, most: int = -1) -> bytes:
    """Decompress a file. Raises ``DataError`` if it is damaged, or has more than ``most`` bytes."""
    kind = compression_of(data)
    openers: dict[str, Callable[[Any], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    if kind not in (*openers, "zlib"):
        raise DataError(f"{path} is compressed by {kind}, which is not read: unpack it first")
    try:
        if kind == "zlib":
            found = _inflated(data)
        else:
            with openers[kind](io.BytesIO(data)) as file:
                found = file.read(most + 1 if most >= 0 else -1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: its {kind} stream is damaged or cut off ({error}): copy the file again") from error
    if 0 <= most < len(found):
        raise DataError(
            f"{path} is compressed and holds more than {most >> 20} MiB: no sample of it can be read without all "
            "that lies before it; unpack it once (gunzip, bunzip2, unxz)"
        )
    return found


def _inflated(data: bytes | bytearray) -> bytes:
    inflate = zlib.decompressobj()
    found = inflate.decompress(data)
    if not inflate.eof or inflate.unused_data:
        raise EOFError("it ends too early, or other bytes follow")
    return found


@contextmanager
def translated(path: str, kind: str, extra: str = "data") -> Iterator[None]:
    """Turn any error of a library, or its absence, into a ``DataError`` that names the file and a remedy."""
    try:
        yield
    except DataError:
        raise
    except ModuleNotFoundError as error:
        raise DataError(f'{path}: {kind} needs the package {error.name}: pip install "farandole[{extra}]"') from error
    except Exception as error:
        if not logger.isEnabledFor(logging.DEBUG):
            error.__traceback__ = None  # a line for the cause: what the library did in its frames helps nobody
        raise DataError(
            f"{path} cannot be read as {kind} ({type(error).__name__}: {error}): it is damaged, or has what the reader "
            "does not know; copy it again, or leave it out (on_corrupt='skip' does, in batches)"
        ) from error
