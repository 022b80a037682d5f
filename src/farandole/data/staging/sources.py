"""``PieceSources``: reads pieces from shared storage and from other hosts, verifies them and counts the bytes.

    for first, data in sources.blocks(3, "node2", addresses, checksums):
        writer.write(first, data)

Bytes from another host are verified with the checksums that it sends, and these with the index, if that has any. The
index has one checksum per piece, over the checksums of its blocks. So bytes from shared storage are verified if a piece
is read whole; before a part of a piece is read past the cache, the whole piece is read once to learn its checksums.

Threads. Reader threads and threads of workers call concurrently; each has its own connections to other stagers.
``_lock`` guards the counters.

``StoredPieces``: pieces as they lie in shared storage.

    stored = StoredPieces(manifest, pieces)
    data = stored.read(3, checksums.bounds, first=0, last=4)        # blocks 0 to 3

A file whose size or time differs from its listing is refused: its samples may lie elsewhere than the manifest says, and
hosts that read it at different times would get different bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, final

from farandole.data.staging.board import SHARED
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.peers import PeerReader
from farandole.data.staging.protocol import CHUNK_BYTES, StagerConfig
from farandole.data.storage.byte_store import ByteStore, require_unchanged
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
        if found is not None:
            require_unchanged(readable(self._manifest.paths[file]), listed, found)


def readable(path: str) -> str:
    """A path for messages: bytes that are no Unicode are escaped."""
    return path.encode(errors="backslashreplace").decode()


READ_BYTES = 2**20
"""Bytes per read of shared storage: after each read the attempt counts as moving, however slow the storage is."""

PeerBlocks: TypeAlias = tuple[int, int, memoryview, bytes]
"""First block, the block after the last, their bytes, and the checksums of the piece."""

DIFFERS = "it differs from the checksum in the index: the file is damaged, or has changed since"


@final
class PieceSources:
    """Sources of the pieces of ``manifest``, for the stager with ``config``."""

    def __init__(self, config: StagerConfig, manifest: Manifest, pieces: Pieces) -> None:
        self._config, self._manifest, self._pieces = config, manifest, pieces
        self.data = f"{config.digest}-{config.most_bytes:x}"
        """Name of the data set and of its division into pieces."""
        self._stored = StoredPieces(manifest, pieces)
        self._known: dict[int, Checksums] = {}
        self._local, self._lock = threading.local(), threading.Lock()
        self.shared_bytes = self.received_bytes = 0

    def blocks(
        self,
        piece: int,
        source: str,
        addresses: Sequence[str],
        checksums: Checksums,
        part: tuple[int, int] | None = None,
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield runs of blocks of a piece, or of a ``part`` of it, each with its first number; fills in ``checksums``.

        Another host is asked for a part only if it has room to keep the piece, because requests for other parts follow.
        Raises ``DataError`` if the blocks cannot be read, or have changed.
        """
        if source != SHARED:
            runs = [part] if part else checksums.runs(CHUNK_BYTES)
            found = self.peers().blocks(addresses, piece, runs, self._config.give_up_s, stays=bool(part))
            yield from self._compared(piece, source, addresses, checksums, found)
            return
        known = self._verified(piece) if part and len(self._manifest.sums) else None
        for first, last in [part] if part else checksums.runs(READ_BYTES):
            data = self._stored.read(piece, checksums.bounds, first, last)
            checksums.note(first, last, data)
            with self._lock:
                self.shared_bytes += len(data)
            if known is not None and not known.verify(first, last, data):
                raise DataError(DIFFERS)
            yield first, data
        if not part and self._manifest.sum_of(piece) not in (None, checksums.whole()):
            raise DataError(DIFFERS)

    def place(self, piece: int) -> tuple[str, int]:
        """Path and offset at which a piece begins, for messages."""
        return self._stored.place(piece)

    def words(self, piece: int, why: str) -> str:
        """Message about a piece that is unavailable."""
        path, offset = self.place(piece)
        return f"piece {piece} ({path} from byte {offset} on) cannot be had on {self._config.host}: {why}"

    def peers(self) -> PeerReader:
        """Connections of the calling thread to other stagers."""
        if not hasattr(self._local, "peers"):
            if self._config.keys is None:
                raise DataError("a job of one host has no other to ask")
            self._local.peers = PeerReader(self._config.keys, self._config.host, self.data)
        reader: PeerReader = self._local.peers
        return reader

    def _verified(self, piece: int) -> Checksums:
        if piece not in self._known:
            checksums = Checksums.unknown(self._pieces.blocks(piece))
            for _ in self.blocks(piece, SHARED, (), checksums):
                pass
            self._known[piece] = checksums
        return self._known[piece]

    def _compared(
        self, piece: int, host: str, addresses: Sequence[str], checksums: Checksums, found: Iterable[PeerBlocks]
    ) -> Iterator[tuple[int, memoryview]]:
        for first, last, data, sums in found:
            told = Checksums.decode(checksums.bounds, sums, self._manifest.sum_of(piece))
            if told is None:
                raise DataError(f"{host} sent other checksums: it has another version of the file")
            checksums.values = told.values
            if not checksums.verify(first, last, data):
                self.peers().forget(addresses)
                raise DataError(f"it arrived damaged from {host}")
            with self._lock:
                self.received_bytes += len(data)
            yield first, data
