"""``Board``: pieces that a host holds, fetches and still needs, and the source of each fetch.

    board = Board(held={3}, limit=2 * 10**9, sizes=pieces.sizes)
    board.assign(routes, order=[0, 1, 2])
    task = board.next_fetch(now)                # Fetch(piece=0, source="")
    board.finished(task)                        # or board.failed(task, "why")
    board.state_of(0)                           # PieceState.HELD

Pure: no clock, no thread, no file. The stager calls it under one lock.

The route of a piece lists its sources in the order to try them; "" is shared storage. Pieces with a waiter (a worker or
another host) are fetched first, in the order of the requests; then pieces of the plan, in the order of first use.
Pieces of the stream, which do not stay, share the room that the pieces to keep leave; if it is too small for the next
one, that waits, and pieces to keep overtake it.

An attempt without progress for too long frees its piece for the next source; its result still counts if it completes.
While reads of shared storage make no progress, it is tried last, and other hosts are told, so they need not time out.
"""

from __future__ import annotations

import bisect
import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from farandole.data.storage.fields import Integers

Route = Sequence[str]
SHARED = ""
"""Shared storage, as a source; other sources are names of hosts."""

LAG = 4
"""Windows after which a piece of the stream counts as used, if workers do not report their progress."""

PATIENCE_WITH_HOSTS = 5
"""Factor on ``patience_s`` for another host: that host reports by itself when its reads of shared storage are late."""


class PieceState(enum.Enum):
    """State of a piece on this host."""

    ABSENT = "absent"
    FETCHING = "fetching"
    HELD = "held"
    FAILED = "failed"


class Fetch(NamedTuple):
    """One attempt to get a piece from a source."""

    piece: int
    source: str
    number: int


@final
class Board:
    """Pieces of one data set on one host, with room for ``limit`` bytes of them."""

    def __init__(self, sizes: Integers, limit: int, held: Iterable[int] = ()) -> None:
        self.limit = limit
        self._sizes = sizes
        self._held = set(held)
        self.used = sum(int(sizes[piece]) for piece in self._held)
        self._route: Callable[[int], Route] = lambda _: (SHARED,)
        self._wanted: tuple[deque[int], deque[int]] = (deque(), deque())
        """Pieces of the plan that are to be fetched: to keep, and of the stream."""
        self._demanded: dict[int, None] = {}
        self._running: dict[int, list[Fetch]] = {}
        self._begun_s: dict[Fetch, float] = {}
        self._moved_s: dict[Fetch, float] = {}
        self._late: set[Fetch] = set()
        self.sources: dict[int, str] = {}
        """Source from which each piece was fetched."""
        self._tried: dict[int, list[tuple[str, str]]] = {}
        """Sources that failed to deliver a piece in this round, with the reasons."""
        self.errors: dict[int, str] = {}
        """Reason for each piece that no source delivered."""
        self.crowded: set[int] = set()
        """Pieces of ``errors`` for which the cache has no room."""
        self._kept: set[int] = set()
        self._kept_bytes = 0
        self._streamed: dict[int, int] = {}
        """Position in the order of first use, for pieces that need not stay in the cache."""
        self._places: dict[int, int] = {}
        self._window = 1
        self._opened: set[int] = set()
        """Pieces, not to keep, that a worker has opened in this epoch, or another host."""
        self._waited: set[int] = set()
        """Pieces that have arrived for a waiter, which has yet to open them."""
        self._alone: dict[int, int] = {}
        """Bytes of each piece that were read in rows since it was here."""
        self._last_opened = -1
        self._passed: int | None = None
        self._numbers = 0

    def assign(
        self,
        route: Callable[[int], Route],
        order: Sequence[int],
        kept: Iterable[int],
        streamed: Mapping[int, int] | None = None,
        window: int = 1,
    ) -> None:
        """Adopt a new plan: the pieces to keep, and the route of each piece.

        ``streamed`` maps each piece held only while in use to its position in the order of first use; ``window``
        consecutive pieces of that order are in use together.
        """
        self._route, self._kept = route, set(kept)
        self._kept_bytes = sum(int(self._sizes[piece]) for piece in self._kept)
        self._streamed, self._window = dict(streamed or {}), window
        self._opened.clear()
        self._waited.clear()
        self._alone.clear()
        self._last_opened, self._passed = -1, None
        self._places = {piece: place for place, piece in enumerate(order)}
        missing = [piece for piece in order if piece not in self._held]
        self._wanted = (
            deque(piece for piece in missing if piece not in self._streamed),
            deque(piece for piece in missing if piece in self._streamed),
        )
        self._tried.clear()
        self.errors.clear()
        self.crowded.clear()

    @property
    def held(self) -> set[int]:
        """Pieces in the cache."""
        return self._held

    @property
    def due(self) -> int:
        """Number of pieces with a waiter for which a new attempt can start."""
        return sum(piece not in self._held and self._is_free(piece) for piece in self._demanded)

    def state_of(self, piece: int) -> PieceState:
        """State of a piece."""
        if piece in self._held:
            return PieceState.HELD
        if piece in self.errors:
            return PieceState.FAILED
        return PieceState.FETCHING if piece in self._running or piece in self._demanded else PieceState.ABSENT

    def error_of(self, piece: int) -> str:
        """Reason why no source delivered a piece, or ""."""
        return self.errors.get(piece, "")

    def failure_of(self, piece: int, source: str) -> str:
        """Reason why a source failed to deliver a piece in this round; "" if it was not tried, or may still deliver."""
        late = "it does not answer" if source == SHARED and self.is_storage_late else ""
        return self.errors.get(piece, "") or dict(self._tried.get(piece, ())).get(source, "") or late

    @property
    def is_storage_late(self) -> bool:
        """True while a read of shared storage makes no progress."""
        return any(task.source == SHARED for task in self._late)

    def refusal(self, piece: int, asker: str, host: str) -> str:
        """Reason why ``host``, the owner of this board, cannot fetch a piece for ``asker``; "" if it may wait."""
        if error := self.failure_of(piece, SHARED):
            return f"{host} cannot read it: {error}"
        is_asked = any(task.source == asker for task in self._running.get(piece, ()))
        return f"{host} asks for it, too" if is_asked and host < asker else ""  # their plans are of two generations

    def demand(self, piece: int) -> None:
        """Fetch a piece before all others; retry it if it failed before."""
        self.errors.pop(piece, None)
        self.crowded.discard(piece)
        if piece not in self._held:
            self._demanded.setdefault(piece)

    def opened(self, piece: int) -> None:
        """Note that a worker, or another host, uses a piece that does not stay."""
        self._waited.discard(piece)
        if piece not in self._kept:
            self._opened.add(piece)
        if piece in self._streamed:
            self._last_opened = max(self._last_opened, self._streamed[piece])

    def passed(self, position: int) -> None:
        """Note that no worker needs the pieces before ``position`` in the order of first use any more."""
        self._passed = max(self._passed or 0, position)

    def is_over(self, piece: int) -> bool:
        """True for a piece of the stream that no worker needs in this epoch any more."""
        passed = self._last_opened - LAG * self._window if self._passed is None else self._passed
        return self._streamed.get(piece, passed) < passed

    def read_rows(self, piece: int, nbytes: int) -> None:
        """Note that rows of a piece are read without the rest of it."""
        self._alone[piece] = self._alone.get(piece, 0) + nbytes

    def is_used(self, piece: int) -> bool:
        """True for a piece, not to keep, that was here for a worker or another host: rows of it are read one by one.

        Once they amount to the whole piece, it is fetched again. So whatever the order of reads is, they cost at most
        about twice what the better way costs, rows or pieces.
        """
        was_here = piece in self._opened or piece in self._waited
        return was_here and self._alone.get(piece, 0) < int(self._sizes[piece])

    def next_fetch(self, now: float, is_idle: bool = True) -> Fetch | None:
        """Next attempt, if there is one; a piece without a waiter is fetched only if ``is_idle``."""
        for piece in [each for each in self._demanded if self._is_free(each)]:
            if self._running and self.room_for(piece) is None:
                continue  # until a piece under way is used, and can be dropped
            if (task := self._attempt(piece, now)) is not None:
                return task
        while is_idle and (wanted := self._next_wanted()) is not None:
            if (task := self._attempt(wanted, now)) is not None:
                return task
        return None

    def _next_wanted(self) -> int | None:
        """Remove and return the next piece of the plan that has room, in the order of first use."""
        for queue in self._wanted:
            while queue and not self._is_due(queue[0]):
                queue.popleft()
        for queue in sorted((each for each in self._wanted if each), key=lambda queue: self._places[queue[0]]):
            if self.room_for(queue[0]) is not None:
                return queue.popleft()
        return None

    def _is_due(self, piece: int) -> bool:
        is_known = piece in self._held or piece in self.errors or piece in self._running
        return not is_known and not self.is_over(piece)

    def finished(self, task: Fetch) -> bool:
        """Note that a piece is in the cache; false if another attempt completed first."""
        self._end(task)
        is_first = task.piece not in self._held
        self.sources[task.piece] = task.source
        if is_first:
            self._held.add(task.piece)
            self.used += int(self._sizes[task.piece])
        if task.piece in self._demanded:
            del self._demanded[task.piece]
            self._waited.add(task.piece)
        for each in (self._tried, self.errors, self._alone):
            each.pop(task.piece, None)
        self.crowded.discard(task.piece)
        return is_first

    def moved(self, task: Fetch, now: float) -> None:
        """Note that an attempt received some bytes."""
        if task in self._begun_s:
            self._moved_s[task] = now
            self._late.discard(task)

    def failed(self, task: Fetch, why: str, *, is_crowded: bool = False) -> None:
        """Note that an attempt failed; try the next source. After the last one, every waiter gets the error.

        If the cache has no room (``is_crowded``), no other source is tried.
        """
        self._end(task)
        if task.piece in self._held:
            return
        self._tried.setdefault(task.piece, []).append((task.source, why))
        if task.piece in self._running:
            return
        if is_crowded or self._untried(task.piece) is None:
            self._give_up(task.piece)
            if is_crowded:
                self.crowded.add(task.piece)
        else:
            self._demanded.setdefault(task.piece)

    def late(self, now: float, patience_s: float) -> list[Fetch]:
        """Attempts without progress for too long; their pieces may be fetched from the next source, if there is one.

        An attempt is returned repeatedly; from the second time on, the failed sources of its piece may be tried again.
        """
        late = []
        for task, moved_s in self._moved_s.items():
            if now - moved_s > patience_s * (1 if task.source == SHARED else PATIENCE_WITH_HOSTS):
                late.append(task)
                if task in self._late:
                    self._tried.pop(task.piece, None)
        self._late.update(late)
        for task in late:
            self._moved_s[task] = now
            if task.piece not in self._held:
                self._demanded.setdefault(task.piece)
        return late

    def busy(self) -> int:
        """Number of attempts under way that are not late."""
        return len(self._begun_s) - len(self._late)

    def running(self, now: float) -> list[tuple[Fetch, float]]:
        """Attempts under way, with their elapsed seconds."""
        return [(task, now - begun_s) for task, begun_s in self._begun_s.items()]

    def forget(self, piece: int) -> None:
        """Note that a piece is no longer in the cache; if it was not used, it is to be fetched again in its turn."""
        if piece in self._held:
            self._held.remove(piece)
            self.used -= int(self._sizes[piece])
            if piece in self._places and piece not in self._opened:
                bisect.insort(self._wanted[piece in self._streamed], piece, key=self._places.__getitem__)

    def room_for(self, piece: int) -> list[int] | None:
        """Pieces to drop to make room for ``piece``; ``None`` if there cannot be enough room now."""
        size = int(self._sizes[piece])
        coming = [each for each in self._running if each != piece and each not in self._held]
        missing = self.used + self._bytes(coming) + size - self.limit
        crowding = 0
        if piece in self._streamed:
            streamed = self._bytes(self._streamed.keys() & {*self._held, *coming})
            crowding = streamed + size - (self.limit - self._kept_bytes)
        drops: list[int] = []
        for candidate in self._droppable(piece) if missing > 0 or crowding > 0 else ():
            is_streamed = candidate in self._streamed
            if missing > 0 or (is_streamed and crowding > 0):
                drops.append(candidate)
                missing -= int(self._sizes[candidate])
                crowding -= int(self._sizes[candidate]) * is_streamed
        return drops if missing <= 0 and crowding <= 0 else None

    def _attempt(self, piece: int, now: float) -> Fetch | None:
        source = self._untried(piece)
        if source is None:
            self._give_up(piece)
            return None
        self._numbers += 1
        task = Fetch(piece, source, self._numbers)
        self._running.setdefault(piece, []).append(task)
        self._begun_s[task] = self._moved_s[task] = now
        return task

    def _is_free(self, piece: int) -> bool:
        """True if an attempt may start: none is under way, or all are late and an untried source is left."""
        running = self._running.get(piece, ())
        return not running or (self._late.issuperset(running) and self._untried(piece) is not None)

    def _untried(self, piece: int) -> str | None:
        tried = {source for source, _ in self._tried.get(piece, ())} | {
            each.source for each in self._running.get(piece, ())
        }
        left = [source for source in self._route(piece) if source not in tried]
        if self.is_storage_late:
            left.sort(key=lambda source: source == SHARED)
        return left[0] if left else None

    def _give_up(self, piece: int) -> None:
        reasons = [f"{source or 'shared storage'}: {why}" for source, why in self._tried.pop(piece, [])]
        self.errors[piece] = "; ".join(reasons) or "no host has it, and none can read it"
        self._demanded.pop(piece, None)

    def _end(self, task: Fetch) -> None:
        self._begun_s.pop(task, None)
        self._moved_s.pop(task, None)
        self._late.discard(task)
        running = self._running.get(task.piece, [])
        if task in running:
            running.remove(task)
            if not running:
                del self._running[task.piece]

    def _bytes(self, pieces: Iterable[int]) -> int:
        return sum(int(self._sizes[piece]) for piece in pieces)

    def _droppable(self, piece: int) -> list[int]:
        """Pieces that may be dropped for another one, in this order.

        First pieces outside the plan; pieces of the stream that no worker needs any more, the oldest first; and such as
        are needed later than the other one, the last-needed first. For a piece with a waiter also opened pieces of the
        stream, the oldest first: workers read in the order of first use, about.
        """
        foreign = [each for each in self._held if each not in self._kept and each not in self._streamed]
        streamed = sorted(self._streamed.keys() & self._held, key=self._streamed.__getitem__)
        over = [each for each in streamed if self.is_over(each)]
        needed, in_use = self._streamed.get(piece, -1), self._opened | self._waited
        later = [
            each
            for each in reversed(streamed)
            if self._streamed[each] > needed and each not in in_use and not self.is_over(each)
        ]
        opened = [each for each in streamed if each in self._opened and not self.is_over(each)]
        return foreign + over + later + (opened if piece in self._demanded else [])
