"""``StagedFiles``: bytes of a data set from the cache of this host, or from the host that holds them.

    store = StagedFiles(manifest, link)
    source = source.on(store)

A read opens the file of its piece and verifies the checksums of the blocks that it reads. If the piece is not here yet,
the read asks the stager, and waits. A worker never reads shared storage itself.

Threads. Any thread reads. ``_lock`` guards the table of open pieces; a piece that is dropped from the table is closed
when its last reader has released it.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from farandole.data.staging.cache import CachedPiece, CacheFolder
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.link import StagerLink
from farandole.data.staging.protocol import Blocks, Damaged, InCache, Need, Opened
from farandole.data.storage.byte_store import ByteStore, Rows
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.data.storage.waits import during
from farandole.errors import DataError

MOST_OPEN = 512
"""Pieces that a process keeps open, one descriptor each: with fewer, most samples of a random order open a piece."""
ATTEMPTS = 3
"""How often a piece is fetched again if it is damaged each time."""

READ_BYTES = 16 * 2**20
"""Bytes per read: a larger read is no faster, and another host sends this many in one answer."""


class _CachedRow(NamedTuple):
    """Row of a batch in the blocks from ``first`` to before ``last`` of an open piece, or in a part of them."""

    piece: CachedPiece
    begin: int
    first: int
    last: int
    is_exact: bool

    def complete(self, data: memoryview) -> bool:
        """Verify a row that was read, or read one that is a part of its blocks; false if they are damaged."""
        if self.is_exact:
            return self.piece.checksums.verify(self.first, self.last, data)
        return _read_verified(self.piece, self.begin, data)


@final
class StagedFiles(ByteStore):
    """Files of ``manifest``, which the stager behind ``link`` keeps in ``folder``."""

    def __init__(self, manifest: Manifest, link: StagerLink, folder: str = "") -> None:
        self.manifest, self.link, self.folder = manifest, link, folder
        self.pieces = Pieces.of(manifest, link.config.most_bytes)
        self._cache = CacheFolder.of(folder)
        self._open: OrderedDict[int, CachedPiece] = OrderedDict()
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._begins, self._bounds = self.pieces.begins.tolist(), self.pieces.bounds.tolist()
        self._sizes = manifest.sizes.tolist()
        self.is_stream = True
        """True if the stager must know which pieces are in use, because some pieces do not stay."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.link.config.index, self.link, self.folder)

    def size(self, path: str) -> int:
        return int(self.manifest.sizes[self._number(path)])

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        file, end = self._number(path), offset + len(buffer)
        if end > int(self.manifest.sizes[file]):
            raise DataError(f"{path} has {int(self.manifest.sizes[file])} bytes, and bytes up to {end} were to be read")
        place = int(self.pieces.begins[file]) + offset
        for piece in self.pieces.spanned(file, offset, len(buffer)) if len(buffer) else ():
            first = int(self.pieces.bounds[piece])
            stop = min(place + len(buffer), int(self.pieces.bounds[piece + 1]))
            for begin in range(max(place, first), stop, READ_BYTES):
                part = buffer[begin - place : min(stop, begin + READ_BYTES) - place]
                self._read(piece, begin - first, part)

    def read_rows(self, paths: Sequence[str], offsets: Sequence[int], rows: Rows) -> None:
        with during("disk", paths[0], len(rows.memory)):
            found = [self._here(path, offset, rows.nbytes) for path, offset in zip(paths, offsets, strict=True)]
            here = {row: each for row, each in enumerate(found) if each is not None}
            exact = {row: each for row, each in here.items() if each.is_exact}
            failed = rows.read(
                [*exact], [each.piece.fd for each in exact.values()], [each.begin for each in exact.values()]
            )
            done = {row for row, each in here.items() if row not in failed and each.complete(rows[row])}
        for row, path in enumerate(paths):
            if row not in done:
                self.read_into(path, offsets[row], rows[row])

    def local_path(self, path: str) -> str | None:
        """File of a piece that is all of ``path`` and is cached here, else ``None``; a stream may drop its pieces."""
        if self.is_stream:
            return None
        file = self._number(path)
        spanned = self.pieces.spanned(file, 0, int(self.manifest.sizes[file]))
        if len(spanned) != 1 or int(self.pieces.sizes[spanned[0]]) != int(self.manifest.sizes[file]):
            return None
        buffer = bytearray(self.size(path))  # verifies its checksums once
        self.read_into(path, 0, memoryview(buffer))
        found = str(self._cache.path(spanned[0]))
        return found if os.path.exists(found) else None

    def use(self, folder: str) -> None:
        """Look for pieces in this folder: a stager that was started again may use another one."""
        if folder != self.folder:
            self.folder, self._cache = folder, CacheFolder.of(folder)

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    def _number(self, path: str) -> int:
        if not self._numbers:
            self._numbers = {each: number for number, each in enumerate(self.manifest.paths)}
        try:
            return self._numbers[path]
        except KeyError:
            raise DataError(f"{path} is not among the {len(self._numbers)} files that are staged") from None

    def _here(self, path: str, offset: int, nbytes: int) -> _CachedRow | None:
        """Place of these bytes in the cache, if they lie in one piece that is open."""
        file = self._number(path)
        place = self._begins[file] + offset
        piece = bisect.bisect_right(self._bounds, place) - 1
        cached = self._open.get(piece)
        if cached is None or offset + nbytes > self._sizes[file]:
            return None
        begin, sums = place - self._bounds[piece], cached.checksums
        places = sums.places
        first = bisect.bisect_right(places, begin) - 1
        if places[first] == begin and first + 1 < len(places) and places[first + 1] == begin + nbytes:  # most rows
            return _CachedRow(cached, begin, first, first + 1, True)
        if begin + nbytes > places[-1]:
            return None
        first, last = sums.covering(begin, begin + nbytes)
        is_exact = places[first] == begin and sums.nbytes(first, last) == nbytes
        return _CachedRow(cached, begin, first, last, is_exact)

    def _read(self, piece: int, begin: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from a piece, verified."""
        damaged = 0
        while damaged < ATTEMPTS:
            cached = self._opened(piece)
            if cached is None:
                if self._request_piece(piece, begin, buffer):
                    return
                cached = self._opened(piece)  # now the stager has it
            if cached is not None:
                with during("disk", f"piece {piece}", len(buffer)):
                    if _read_verified(cached, begin, buffer):
                        return
            elif os.path.exists(self.folder) and not self._cache.path(piece).exists():
                continue  # dropped, because another worker needed the room: try again
            damaged += 1
            with self._lock:
                self._open.pop(piece, None)
            self.link.request(Damaged(piece))
        failure = DataError(f"{self._cache.path(piece)} was damaged {ATTEMPTS} times: is the disk under it failing?")
        failure.is_outage = True
        raise failure

    def _opened(self, piece: int) -> CachedPiece | None:
        with self._lock:
            if piece in self._open:
                self._open.move_to_end(piece)
                return self._open[piece]
        cached = self._cache.open(piece, self.pieces.blocks(piece), self.manifest.sum_of(piece))
        if cached is not None:
            with self._lock:
                for other in [other for other, each in self._open.items() if each.is_dropped()]:
                    del self._open[other]  # unlinked: free its room
                self._open[piece] = cached
                if len(self._open) > MOST_OPEN:
                    self._open.popitem(last=False)
            if self.is_stream:
                self.link.request(Opened(piece))
        return cached

    def _request_piece(self, piece: int, begin: int, buffer: memoryview) -> bool:
        """Wait until the stager has a piece; true if it has sent the bytes instead."""
        bounds = self.pieces.blocks(piece)
        first, last = Checksums.unknown(bounds).covering(begin, begin + len(buffer))
        with during("peer", f"piece {piece}", len(buffer)) as waited:
            answer, data = self.link.request(Need(piece, first, last))
            if isinstance(answer, InCache):
                waited.category = answer.wait
            elif isinstance(answer, Blocks):
                waited.category = "shared storage" if answer.source == "shared storage" else "peer"
        if isinstance(answer, InCache):
            self.use(answer.folder)
            return False
        if not isinstance(answer, Blocks):
            return False
        sums = Checksums.decode(bounds, answer.sums)
        if sums is None or not sums.verify(first, last, memoryview(data)):
            return False  # damaged: try again
        start = begin - int(bounds[first])
        buffer[:] = data[start : start + len(buffer)]
        return True


def _read_verified(cached: CachedPiece, begin: int, buffer: memoryview) -> bool:
    """Fill ``buffer`` from ``begin`` on, and verify the blocks around it; false if they are damaged."""
    sums = cached.checksums
    if begin + len(buffer) > sums.places[-1]:
        return False
    first, last = sums.covering(begin, begin + len(buffer))
    start, nbytes = sums.places[first], sums.nbytes(first, last)
    is_exact = start == begin and nbytes == len(buffer)
    data = buffer if is_exact else memoryview(bytearray(nbytes))
    try:
        cached.read_blocks(first, last, data)
    except (DataError, OSError):
        return False
    if not sums.verify(first, last, data):
        return False
    if not is_exact:
        buffer[:] = data[begin - start : begin - start + len(buffer)]
    return True


def _opened(index: str, link: StagerLink, folder: str) -> StagedFiles:
    return StagedFiles(Manifest.load(index, is_held=True), link, folder)
