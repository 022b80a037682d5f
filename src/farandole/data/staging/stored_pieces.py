"""``StoredPieces``: pieces as they lie in shared storage.

    stored = StoredPieces(manifest, pieces)
    data = stored.read(3, checksums.bounds, first=0, last=4)        # blocks 0 to 3

A file whose size or time differs from its listing is refused: its samples may lie elsewhere than the manifest says, and
hosts that read it at different times would get different bytes.
"""

from __future__ import annotations

from typing import final

from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.fields import Integers
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.data.storage.stores import store_for
from farandole.errors import DataError


@final
class StoredPieces:
    """Blocks of pieces, read from the original files. Any thread may read."""

    def __init__(self, manifest: Manifest, pieces: Pieces) -> None:
        self._manifest, self._pieces = manifest, pieces
        self._store: ByteStore = store_for(manifest.paths[0] if len(manifest.paths) else "")

    def read(self, piece: int, bounds: Integers, first: int, last: int) -> memoryview:
        """Read blocks ``first`` to before ``last``. Raises ``DataError`` if they cannot be read, or have changed."""
        begin, end = int(bounds[first]), int(bounds[last])
        data = memoryview(bytearray(end - begin))
        at = 0
        for file, offset, nbytes in self._pieces.extents(piece):
            low, high = max(begin, at), min(end, at + nbytes)
            if low < high:
                part = data[low - begin : high - begin]
                self._store.read_into(self._manifest.paths[file], offset + low - at, part)
                self._require_unchanged(file)
            at += nbytes
        return data

    def place(self, piece: int) -> tuple[str, int]:
        """Path and offset at which a piece begins, for messages."""
        extents = self._pieces.extents(piece)
        path, offset = (self._manifest.paths[extents[0][0]], extents[0][1]) if extents else (self._manifest.root, 0)
        return readable(path), offset

    def _require_unchanged(self, file: int) -> None:
        found = self._store.version(self._manifest.paths[file])
        listed = int(self._manifest.sizes[file]), int(self._manifest.mtimes_ns[file])
        if found is not None and found != (listed[0], listed[1] or found[1]):
            raise DataError(
                f"{readable(self._manifest.paths[file])} has changed since it was listed: from {listed[0]} bytes of "
                f"{listed[1]} ns to {found[0]} bytes of {found[1]} ns; list it again, and leave it as it is"
            )


def readable(path: str) -> str:
    """A path for messages: bytes that are no Unicode are escaped."""
    return path.encode(errors="backslashreplace").decode()
