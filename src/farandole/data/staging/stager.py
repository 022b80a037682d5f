"""The stager: one process per host that fetches the pieces of a data set, keeps them, and gives them to other hosts.

A worker starts it, it outlives that worker, and ends when none of them is connected any more, or by SIGTERM from the
agent of the host. Its config is one message on standard input. Only its readers touch shared storage.

Threads. ``_changed`` is the one condition; its lock guards the board, the assignment and the open pieces.

- The main thread accepts workers, and looks once in a while for reads that take too long.
- Each connection of a worker has a thread: it asks one thing at a time, and waits for the answer.
- Readers take attempts from the board. What somebody waits for always finds one: a new one is started where all are
  busy, as hosts whose readers all wait for each other would wait for ever. A reader that shared storage does not let go
  of stays in the kernel, and the board gives its piece to another source. Readers are daemons, and the process ends by
  ``_exit``, as nothing else would end it before such a read does.
- ``PeerServer`` has a thread, which calls ``_look``.

A piece that is read is opened under the lock and read without it. Dropping it removes its name alone.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import final

import numpy as np

from farandole.data.staging.board import SHARED, Board, Fetch, PieceState
from farandole.data.staging.cache import CacheFolder, NewPiece, OpenPiece, PieceFolder
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.host_plan import HostPlan
from farandole.data.staging.mirror import MirrorFolder
from farandole.data.staging.peers import PeerReader, PeerServer, SentBlocks
from farandole.data.staging.protocol import (
    CHUNK_BYTES,
    Answer,
    Ask,
    Assign,
    Blocks,
    Bye,
    Damaged,
    Failed,
    FirstUses,
    Get,
    InCache,
    Need,
    Opened,
    Request,
    StagerConfig,
    Statistics,
    receive_request,
    send,
)
from farandole.data.staging.stored_pieces import StoredPieces, readable
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.errors import DataError, UsageError

TICK_S = 0.5
AT_FIRST = 2
"""Pieces that are fetched at once in the beginning; one more with each that is there."""
ASSIGNED_S = 5.0
"""How long workers that are quicker than the first of their host wait until that has said what is to be here."""
MOST_OPEN = 128
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_BYTES = 2**20
"""Bytes that are asked of shared storage at once; after each it is seen to move, however slow it is."""


@final
class Stager:
    """PieceState of a stager, and what its threads do with it."""

    def __init__(self, config: StagerConfig, manifest: Manifest, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._manifest, self._clock = config, manifest, clock
        self._pieces = Pieces.of(manifest, config.most_bytes)
        self._cache: PieceFolder = (
            MirrorFolder(config.mirror, self._pieces, manifest)
            if config.mirror
            else CacheFolder.take(config.cache, f"{config.digest}-{config.most_bytes:x}")
        )
        held = (piece for piece in self._cache.held() if piece < len(self._pieces))
        self._board = Board(self._pieces.sizes, 0, held)
        self._changed = threading.Condition()
        self._assignment: HostPlan | None = None
        self._order: list[int] = []
        self._idle, self._begun_s = 0, clock()
        self._open: dict[int, OpenPiece] = {}
        self._healing: set[int] = set()
        self._stored = StoredPieces(manifest, self._pieces)
        self._data = f"{config.digest}-{config.most_bytes:x}"
        self._local = threading.local()
        self.shared_bytes = self.received_bytes = self.healed = 0
        self._server: PeerServer | None = None
        if config.keys is not None:
            self._server = PeerServer(config.keys, self._look, config.ports, config.interface, config.port)

    def start_reader(self) -> None:
        """Start one more reader."""
        threading.Thread(target=self._read, name="farandole reader", daemon=True).start()

    def _demand(self, piece: int) -> None:
        """Fetch a piece at once; with the lock."""
        self._board.demand(piece)
        self._changed.notify_all()
        if self._idle < self._board.due:
            self.start_reader()

    def tick(self) -> None:
        """Give pieces whose reads take too long to other sources."""
        with self._changed:
            late = self._board.late(self._clock(), self._config.patience_s)
            for task in late:
                self._demand(task.piece)
        if late:
            self._wake()  # others need not wait for shared storage here

    def close(self) -> None:
        """Free the lock of the cache, and the port."""
        self._cache.close()
        if self._server is not None:
            self._server.close()

    # -- workers -------------------------------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> bool:
        """Answer one connection of a worker until its end; true if it said good-bye."""
        try:
            while (request := receive_request(connection)) is not None:
                if isinstance(request, Bye):
                    return True
                try:
                    answer, data = self._answer(request)
                except (DataError, UsageError, IndexError, ValueError) as error:  # of what the request says
                    answer, data = Failed(readable(f"{type(request).__name__}: {error}")), b""
                send(connection, answer, data)
        except (OSError, DataError):
            pass  # the worker has ended
        return False

    def _answer(self, request: Request) -> tuple[Answer, memoryview | bytes]:
        if isinstance(request, Assign):
            return self._assign(request), b""
        if isinstance(request, Need):
            return self._need(request)
        with self._changed:
            if isinstance(request, FirstUses):
                self._order = np.frombuffer(request.pieces, np.int32).tolist()
                if self._assignment is not None:
                    self._assignment.tell(self._board, self._order)
                self._changed.notify_all()
            elif isinstance(request, Opened):
                self._board.opened(request.piece)
                self._changed.notify_all()
            elif isinstance(request, Damaged):
                self._heal(request.piece)
            elif isinstance(request, Ask):
                return self._statistics(), b""
        return InCache(), b""

    def _assign(self, request: Assign) -> Answer:
        with self._changed:
            known = self._assignment
            if known is not None and known.generation >= request.generation and known.request == request:
                return InCache()
            try:
                self._assignment = HostPlan(request, self._config.host, self._pieces.sizes)
            except DataError as error:
                return Failed(str(error))
            self._board.limit = self._assignment.capacity
            self._assignment.tell(self._board, self._order)
            self._changed.notify_all()
        self._wake()
        return InCache()

    def _need(self, need: Need) -> tuple[Answer, memoryview | bytes]:
        until_s = self._clock() + self._config.give_up_s
        with self._changed:
            while self._assignment is None and self._clock() < self._begun_s + ASSIGNED_S:
                self._changed.wait(TICK_S)
            assignment = self._assignment
            if assignment is not None and assignment.is_ours(need.piece):
                answer = self._await(need.piece, until_s)
                if need.piece not in self._board.crowded:
                    return answer, b""
        return self._far(need, assignment)

    def _await(self, piece: int, until_s: float) -> Answer:
        """Wait, with the lock, for a piece that is to be here."""
        self._demand(piece)
        while (state := self._board.state_of(piece)) is not PieceState.HELD or not self._cache.has(piece):
            if state is PieceState.HELD:
                self._heal(piece)
            elif state is PieceState.ABSENT:  # it was here, and has gone again before this thread could look
                self._demand(piece)
            if state is PieceState.FAILED:
                return Failed(self._words(piece, self._board.error_of(piece)))
            if self._clock() >= until_s:
                return Failed(self._words(piece, f"no source gave it within {self._config.give_up_s:g} s"))
            self._changed.wait(TICK_S)
        source = self._board.sources.get(piece)
        wait = "disk" if source is None else "shared storage" if source == SHARED else "peer"
        return InCache(str(self._cache.folder), wait)

    def _far(self, need: Need, assignment: HostPlan | None) -> tuple[Answer, memoryview | bytes]:
        """Blocks of a piece that is another host's to hold."""
        checksums = Checksums.unknown(self._pieces.blocks(need.piece))
        reasons = []
        for host in assignment.route(need.piece) if assignment is not None else (SHARED,):
            try:
                if host == SHARED:
                    data = self._from_storage(need.piece, checksums, need.first, need.last)
                    return Blocks(checksums.encode(), "shared storage"), data
                runs, addresses = [(need.first, need.last)], assignment.addresses(host) if assignment else []
                found = self._peers().blocks(addresses, need.piece, runs, self._config.give_up_s)
                for _, _, data, sums in found:
                    self._count(received=len(data))
                    return Blocks(sums, f"peer {host}"), data
            except (DataError, OSError) as error:
                reasons.append(readable(f"{host or 'shared storage'}: {error}"))
        return Failed(self._words(need.piece, "; ".join(reasons))), b""

    def _statistics(self) -> Statistics:
        now, sizes = self._clock(), self._pieces.sizes
        kept = self._assignment.kept if self._assignment is not None else set()
        holds = np.zeros(len(sizes), bool)
        holds[list(self._board.held)] = True
        errors = (each for each in self._board.errors.items() if each[0] not in self._board.crowded)
        return Statistics(
            self._server.addresses if self._server is not None else [],
            np.packbits(holds).tobytes(),
            self._board.limit,
            wanted_bytes=min(self._board.limit, int(sizes[list(kept)].sum())),
            held_bytes=int(sizes[list(kept & self._board.held)].sum()),
            shared_bytes=self.shared_bytes,
            received_bytes=self.received_bytes,
            sent_bytes=self._server.sent_bytes if self._server is not None else 0,
            healed=self.healed,
            folder=str(self._cache.folder),
            error=next((self._words(*each) for each in errors), ""),
            reading=[(*self._stored.place(task.piece), seconds) for task, seconds in self._board.running(now)],
        )

    # -- readers -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            with self._changed:
                while (task := self._board.take(self._clock(), self._is_calm())) is None:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
            try:
                self._fetch(task)
            except Exception as error:  # whatever a file system raises, this reader goes on
                is_crowded = isinstance(error, OSError) and error.errno in NO_ROOM
                with self._changed:
                    self._board.failed(task, readable(str(error)), is_crowded=is_crowded)
                    self._changed.notify_all()
            self._wake()

    def _is_calm(self) -> bool:
        """True if what nobody waits for may be fetched: few at first, as the first batch needs the first pieces."""
        return self._board.busy() < min(self._config.readers, AT_FIRST + len(self._board.sources))

    def _fetch(self, task: Fetch) -> None:
        if task.piece in self._healing or not self._cache.link(task.piece):
            checksums = Checksums.unknown(self._pieces.blocks(task.piece))
            writer = self._begin(task, checksums)
            try:
                if task.source == SHARED:
                    self._read_shared(task, checksums, writer.write)
                else:
                    self._receive(task, checksums, writer.write)
                writer.finish()
            except BaseException:
                writer.cancel()
                raise
        with self._changed:
            self._board.finished(task)
            self._healing.discard(task.piece)
            self._changed.notify_all()

    def _begin(self, task: Fetch, checksums: Checksums) -> NewPiece:
        """Begin to write a piece, for which others may have to go."""
        while True:
            with self._changed:
                drops = self._board.room_for(task.piece)
                if drops is None:
                    raise OSError(errno.ENOSPC, f"there is no room for it in {self._board.limit} bytes of cache")
                for piece in drops:
                    self._drop(piece)
            try:
                return self._cache.begin(task.piece, checksums, task.number)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                with self._changed:  # somebody else has filled the disk: go on with what there is
                    self._board.limit = min(self._board.limit, self._board.used)
                    if self._board.room_for(task.piece) is None:
                        raise

    def _read_shared(self, task: Fetch, checksums: Checksums, write: Callable[[int, memoryview], None]) -> None:
        for first, last in checksums.runs(READ_BYTES):
            write(first, self._from_storage(task.piece, checksums, first, last))
            self._moved(task)
        self._require_indexed(task.piece, checksums)

    def _require_indexed(self, piece: int, checksums: Checksums) -> None:
        if len(self._manifest.sums) and int(self._manifest.sums[piece]) != checksums.whole():
            raise DataError("it differs from the checksum in the index: the file is damaged, or has changed since")

    def _from_storage(self, piece: int, checksums: Checksums, first: int, last: int) -> memoryview:
        """Blocks of a piece from shared storage, whose checksums are noted."""
        data = self._stored.read(piece, checksums.bounds, first, last)
        checksums.note(first, last, data)
        self._count(shared=len(data))
        return data

    def _receive(self, task: Fetch, checksums: Checksums, write: Callable[[int, memoryview], None]) -> None:
        assignment = self._assignment
        if assignment is None:
            raise DataError("no plan says where it is")
        found = self._peers().blocks(
            assignment.addresses(task.source),
            task.piece,
            checksums.runs(CHUNK_BYTES),
            self._config.give_up_s,
        )
        for first, last, data, sums in found:
            told = Checksums.decode(checksums.bounds, sums)
            if told is None:
                raise DataError(f"{task.source} sent other checksums: it has another version of the file")
            checksums.values = told.values
            if not checksums.verify(first, last, data):
                self._peers().forget(assignment.addresses(task.source))
                raise DataError(f"it arrived damaged from {task.source}")
            self._count(received=len(data))
            write(first, data)
            self._moved(task)
        self._require_indexed(task.piece, checksums)

    def _moved(self, task: Fetch) -> None:
        with self._changed:
            self._board.moved(task, self._clock())

    # -- other hosts ---------------------------------------------------------------------------------------------------

    def _look(self, get: Get) -> SentBlocks | None:
        """Answer another stager, if the piece is here; ``None``: it is still to come."""
        host = self._config.host
        if get.data != self._data or not 0 <= get.piece < len(self._pieces):
            return SentBlocks(bytearray(), b"", f"{host} stages other data at this address")
        with self._changed:
            if self._assignment is None:
                return None
            if self._board.state_of(get.piece) is not PieceState.HELD:
                if error := self._board.refusal(get.piece, get.asker, host):
                    return SentBlocks(bytearray(), b"", error)
                self._demand(get.piece)
                return None
            cached = self._opened(get.piece)
        content = None if cached is None else self._content(cached, get)
        if content is None:
            with self._changed:
                self._heal(get.piece)
        return content

    def _content(self, cached: OpenPiece, get: Get) -> SentBlocks | None:
        """Blocks out of the cache; ``None`` if they are damaged."""
        sums = cached.checksums
        if not 0 <= get.first < get.last <= len(sums):
            return SentBlocks(
                bytearray(), b"", f"it has {len(sums)} blocks, and {get.first} to {get.last} were asked for"
            )
        data = bytearray(sums.nbytes(get.first, get.last))
        try:
            cached.read_blocks(get.first, get.last, memoryview(data))
        except (DataError, OSError):
            return None
        return SentBlocks(data, sums.encode()) if sums.verify(get.first, get.last, memoryview(data)) else None

    # -- with the lock -------------------------------------------------------------------------------------------------

    def _opened(self, piece: int) -> OpenPiece | None:
        if piece not in self._open:
            if (cached := self._cache.open(piece, self._pieces.blocks(piece))) is None:
                return None
            if len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)))  # closed when nobody reads it any more
            self._open[piece] = cached
        return self._open[piece]

    def _heal(self, piece: int) -> None:
        """Fetch a piece again whose file is gone or damaged."""
        self.healed += 1
        self._healing.add(piece)  # not from another job of this host, whose file may be the same
        self._drop(piece)
        self._demand(piece)

    def _drop(self, piece: int) -> None:
        self._cache.drop(piece)
        self._open.pop(piece, None)
        self._board.forget(piece)

    # -- small things --------------------------------------------------------------------------------------------------

    def _peers(self) -> PeerReader:
        """Connections of the calling thread to other stagers."""
        if not hasattr(self._local, "peers"):
            if self._config.keys is None:
                raise DataError("a job of one host has no other to ask")
            self._local.peers = PeerReader(self._config.keys, self._config.host, self._data)
        reader: PeerReader = self._local.peers
        return reader

    def _count(self, shared: int = 0, received: int = 0) -> None:
        with self._changed:
            self.shared_bytes += shared
            self.received_bytes += received

    def _wake(self) -> None:
        if self._server is not None:
            self._server.wake()

    def _words(self, piece: int, why: str) -> str:
        path, offset = self._stored.place(piece)
        return f"piece {piece} ({path} from byte {offset} on) cannot be had on {self._config.host}: {why}"
