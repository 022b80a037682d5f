"""The stager: one process per host that fetches the pieces of a data set, stores them, and sends them to other hosts.

A worker starts the stager, which outlives it and exits when no worker is connected any more, or after SIGTERM from the
agent of the host. Its configuration is one message on standard input. Workers never read shared storage.

Threads. ``_changed`` is the one condition; its lock guards the board, the assignment and the open pieces.

- The main thread accepts workers, and checks at intervals for reads that take too long.
- Each connection of a worker has a thread: the worker sends one request at a time, and waits for the answer.
- Readers take attempts from the board. A piece with a waiter always gets a reader: if all are busy, a new one is
  started, because hosts whose readers all wait for each other would wait for ever. A reader that is stuck in a read of
  shared storage stays in the kernel, and the board gives its piece to another source. Readers are daemons, and the
  process ends by ``_exit``, because any other exit would wait for such a read.
- ``PeerServer`` has a thread, which calls ``_look``.

A piece is opened under the lock and read without it. Dropping a piece only removes its name.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from farandole.data.staging.board import SHARED, Board, Fetch, PieceState
from farandole.data.staging.cache import CacheFolder, NewPiece, OpenPiece, PieceFolder
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.host_plan import HostPlan
from farandole.data.staging.mirror import MirrorFolder
from farandole.data.staging.peers import PeerServer, SentBlocks, sent_blocks
from farandole.data.staging.protocol import (
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
    Passed,
    Request,
    StagerConfig,
    Statistics,
    receive_request,
    send,
)
from farandole.data.staging.sources import DIFFERS, PieceSources, readable
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.errors import DataError, UsageError

TICK_S = 0.5
AT_FIRST = 2
"""Pieces that are fetched at once in the beginning; each piece that arrived adds one."""
QUIET_S = 3.0
"""How long a leaving host waits for the next request for a piece that only it holds."""
ASSIGNED_S = 5.0
"""How long a worker's request waits for the assignment, which the first worker of the host may send later."""
MOST_OPEN = 128
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@final
class Stager:
    """State of a stager, and the work of its threads."""

    def __init__(self, config: StagerConfig, manifest: Manifest, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._manifest, self._clock = config, manifest, clock
        self._pieces = Pieces.of(manifest, config.most_bytes)
        self._sources = PieceSources(config, manifest, self._pieces)
        self._cache: PieceFolder = (
            MirrorFolder(config.mirror, self._pieces, manifest)
            if config.mirror
            else CacheFolder.acquire(config.cache, self._sources.data)
        )
        self.locked = self._cache.locked
        held = (piece for piece in self._cache.held() if piece < len(self._pieces))
        self._board = Board(self._pieces.sizes, 0, held)
        self._changed = threading.Condition()
        self._assignment: HostPlan | None = None
        self._uses = FirstUses(b"")
        self._idle, self._begun_s = 0, clock()
        self._open: dict[int, OpenPiece] = {}
        self._healing: set[int] = set()
        self.healed = 0
        self._owed: set[int] | None = None
        """Pieces that other hosts have yet to fetch before this host leaves; ``None``: it stays."""
        self._asked_s = 0.0
        self._server: PeerServer | None = None
        if config.keys is not None:
            self._server = PeerServer(config.keys, self._look, config.ports, config.interface, config.port)

    @property
    def hands_over(self) -> bool:
        """True if other hosts may remain when this stager gets SIGTERM."""
        return self._config.hands_over

    def start_reader(self) -> None:
        """Start one more reader."""
        threading.Thread(target=self._read, name="farandole reader", daemon=True).start()

    def _demand(self, piece: int) -> None:
        """Fetch a piece at once; the caller holds the lock."""
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
            self._wake()  # other hosts need not wait for shared storage here

    def hand_over(self) -> None:
        """Hand over the pieces that only this host holds. Called by a signal handler: without lock."""
        if self._owed is None:
            self._owed = self._assignment.sole & self._board.held if self._assignment is not None else set()

    def is_owing(self, since_s: float) -> bool:
        """True while other hosts still request pieces that only this host holds; its workers left at ``since_s``."""
        with self._changed:
            return bool(self._owed) and self._clock() < max(since_s, self._asked_s) + QUIET_S

    def close(self) -> None:
        """Release the lock of the cache, and the port."""
        self._cache.close()
        if self._server is not None:
            self._server.close()

    # -- workers -------------------------------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> bool:
        """Answer one connection of a worker until its end; true if the worker sent ``Bye``."""
        try:
            while (request := receive_request(connection)) is not None:
                if isinstance(request, Bye):
                    return True
                try:
                    answer, data = self._answer(request)
                except (DataError, UsageError, IndexError, ValueError) as error:  # the request is invalid
                    answer, data = Failed(readable(f"{type(request).__name__}: {error}")), b""
                send(connection, answer, data)
        except (OSError, DataError):
            pass  # the worker has exited
        return False

    def _answer(self, request: Request) -> tuple[Answer, memoryview | bytes]:
        if isinstance(request, Assign):
            return self._assign(request), b""
        if isinstance(request, Need):
            return self._need(request)
        with self._changed:
            if isinstance(request, FirstUses):
                self._uses = request
                self._assign_board()
            elif isinstance(request, Opened):
                self._board.opened(request.piece)
                self._changed.notify_all()
            elif isinstance(request, Passed):
                self._board.passed(request.count)
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
            self._board.limit, self._owed = self._assignment.capacity, None
            self._assign_board()
        self._wake()
        return InCache()

    def _need(self, need: Need) -> tuple[Answer, memoryview | bytes]:
        until_s = self._clock() + self._config.give_up_s
        with self._changed:
            while self._assignment is None and self._clock() < self._begun_s + ASSIGNED_S:
                self._changed.wait(TICK_S)
            assignment = self._assignment
            if assignment is not None and assignment.is_ours(need.piece) and not self._by_rows(assignment, need):
                answer = self._await(need.piece, until_s)
                if need.piece not in self._board.crowded:
                    return answer, b""
        return self._far(need, assignment.elsewhere(need.piece) if assignment is not None else [SHARED], until_s)

    def _await(self, piece: int, until_s: float) -> Answer:
        """Wait, with the lock held, for a piece that this host is to hold."""
        self._demand(piece)
        while (state := self._board.state_of(piece)) is not PieceState.HELD or not self._cache.has(piece):
            if state is PieceState.HELD:
                self._heal(piece)
            elif state is PieceState.ABSENT:  # it arrived, and was dropped before this thread could check
                self._demand(piece)
            if state is PieceState.FAILED:
                return self._failed(piece, self._board.error_of(piece))
            if self._clock() >= until_s:
                return self._failed(piece, f"no source gave it within {self._config.give_up_s:g} s")
            self._changed.wait(TICK_S)
        source = self._board.sources.get(piece)
        wait = "disk" if source is None else "shared storage" if source == SHARED else "peer"
        return InCache(str(self._cache.folder), wait)

    def _far(self, need: Need, route: Sequence[str], until_s: float) -> tuple[Answer, memoryview | bytes]:
        """Fetch blocks of a piece that other hosts are to hold, or that has no room here."""
        reasons = []
        for host in route:
            if host == self._config.host:
                if (answer := self._kept_for_others(need.piece, until_s)) is not None:
                    return answer, b""
                continue
            try:
                checksums = Checksums.unknown(self._pieces.blocks(need.piece))
                part = need.first, need.last
                [(_, data)] = self._sources.blocks(need.piece, host, self._at(host), checksums, part)
                return Blocks(checksums.encode(), f"peer {host}" if host else "shared storage"), data
            except (DataError, OSError) as error:
                reasons.append(readable(f"{host or 'shared storage'}: {error}"))
        return self._failed(need.piece, "; ".join(reasons)), b""

    def _kept_for_others(self, piece: int, until_s: float) -> InCache | None:
        """Fetch a piece whose own host has no room for it, if it has room here."""
        with self._changed:
            if self._board.state_of(piece) is PieceState.ABSENT and self._board.room_for(piece) != []:
                return None
            answer = self._await(piece, until_s)
        return answer if isinstance(answer, InCache) else None

    def _failed(self, piece: int, why: str) -> Failed:
        return Failed(self._sources.words(piece, why), is_damaged=DIFFERS in why)

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
            shared_bytes=self._sources.shared_bytes,
            received_bytes=self._sources.received_bytes,
            sent_bytes=self._server.sent_bytes if self._server is not None else 0,
            healed=self.healed,
            folder=str(self._cache.folder),
            error=next((self._sources.words(*each) for each in errors), ""),
            reading=[(*self._sources.place(task.piece), seconds) for task, seconds in self._board.running(now)],
        )

    # -- readers -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            with self._changed:
                while (task := self._board.next_fetch(self._clock(), self._is_calm())) is None:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
            try:
                self._fetch(task)
            except Exception as error:  # a file system may raise anything; this reader goes on
                is_crowded = isinstance(error, OSError) and error.errno in NO_ROOM
                with self._changed:
                    self._board.failed(task, readable(str(error)), is_crowded=is_crowded)
                    if self._assignment is not None and not is_crowded:
                        self._assignment.gone.add(task.source)
                    self._changed.notify_all()
            self._wake()

    def _is_calm(self) -> bool:
        """True if pieces without a waiter may be fetched: few at first, to give the first batch its pieces soon."""
        return self._owed is None and self._board.busy() < min(
            self._config.readers, AT_FIRST + len(self._board.sources)
        )

    def _fetch(self, task: Fetch) -> None:
        if task.piece in self._healing or not self._cache.link(task.piece):
            checksums = Checksums.unknown(self._pieces.blocks(task.piece))
            writer = self._begin(task, checksums)
            try:
                for first, data in self._sources.blocks(task.piece, task.source, self._at(task.source), checksums):
                    writer.write(first, data)
                    with self._changed:
                        self._board.moved(task, self._clock())
                writer.finish()
            except BaseException:
                writer.cancel()
                raise
        with self._changed:
            self._board.finished(task)
            self._healing.discard(task.piece)
            self._changed.notify_all()

    def _begin(self, task: Fetch, checksums: Checksums) -> NewPiece:
        """Start to write a piece; drops other pieces to make room."""
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
                with self._changed:  # another program has filled the disk: keep to the present bytes
                    self._board.limit = min(self._board.limit, self._board.used)
                    if self._board.room_for(task.piece) is None:
                        raise

    # -- other hosts ---------------------------------------------------------------------------------------------------

    def _look(self, get: Get) -> SentBlocks | None:
        """Answer another stager; ``None`` if the piece has not arrived yet."""
        host = self._config.host
        if get.data != self._sources.data or not 0 <= get.piece < len(self._pieces):
            return SentBlocks(bytearray(), b"", f"{host} stages other data at this address")
        with self._changed:
            if self._assignment is None:
                return None
            if self._board.state_of(get.piece) is not PieceState.HELD:
                if get.stays and not self._assignment.is_ours(get.piece) and self._board.room_for(get.piece) != []:
                    return SentBlocks(bytearray(), b"", f"{host} has no room for it either")
                if get.stays and self._by_rows(self._assignment, get, is_asked=True):
                    return SentBlocks(bytearray(), b"", f"{host} has no room for it now")
                asker = SHARED if get.stays else get.asker  # with ``stays`` no host requests it from the asker
                if error := self._board.refusal(get.piece, asker, host):
                    return SentBlocks(bytearray(), b"", error)
                self._demand(get.piece)
                return None
            self._board.opened(get.piece)
            cached, self._asked_s = self._opened(get.piece), self._clock()
            if self._owed and cached is not None and get.last == len(cached.checksums):
                self._owed.discard(get.piece)
        content = None if cached is None else sent_blocks(cached, get)
        if content is None:
            with self._changed:
                self._heal(get.piece)
        return content

    # -- with the lock -------------------------------------------------------------------------------------------------

    def _opened(self, piece: int) -> OpenPiece | None:
        if piece not in self._open:
            whole = self._manifest.sum_of(piece)
            if (cached := self._cache.open(piece, self._pieces.blocks(piece), whole)) is None:
                return None
            if len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)))  # closed after its last reader
            self._open[piece] = cached
        return self._open[piece]

    def _assign_board(self) -> None:
        """Pass plan and order of first use to the board."""
        if self._assignment is not None:
            self._assignment.assign_to(self._board, np.frombuffer(self._uses.pieces, np.int32).tolist())
        self._changed.notify_all()

    def _by_rows(self, assignment: HostPlan, part: Need | Get, is_asked: bool = False) -> bool:
        """True, and noted, if a part of a piece is to be read alone, because the piece would be read too often.

        So it is if the piece does not stay, and samples of all pieces are scattered over the epoch, or the piece was
        used here and dropped; for another host that asks also if it is over, or has no room now.
        """
        piece = part.piece
        if piece in assignment.kept or self._board.state_of(piece) in (PieceState.HELD, PieceState.FETCHING):
            return False
        is_late = is_asked and (self._board.is_over(piece) or self._board.room_for(piece) is None)
        if is_alone := self._uses.scattered or is_late or self._board.is_used(piece):
            bounds = self._pieces.blocks(piece)
            self._board.read_rows(piece, int(bounds[part.last] - bounds[part.first]))
        return is_alone

    def _heal(self, piece: int) -> None:
        """Fetch a piece again, because its file is missing or damaged."""
        self.healed += 1
        self._healing.add(piece)  # do not link it from another job of this host, which may have the same file
        self._drop(piece)
        self._demand(piece)

    def _drop(self, piece: int) -> None:
        self._cache.drop(piece)
        self._open.pop(piece, None)
        self._board.forget(piece)

    # -- small things --------------------------------------------------------------------------------------------------

    def _at(self, host: str) -> list[str]:
        """Addresses of the stager of another host; none for shared storage."""
        return self._assignment.addresses(host) if self._assignment is not None else []

    def _wake(self) -> None:
        if self._server is not None:
            self._server.wake()
