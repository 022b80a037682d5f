"""Hosts that stage, simulated: the boards and assignments of the product, with time, storage and wires of our own.

hosts = Hosts(sizes, entries, random.Random(7), failing=0.1)
hosts.need("node1", 3)
hosts.run()
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from farandole.data.staging.board import SHARED, Board, Fetch, PieceState
from farandole.data.staging.host_plan import HostPlan
from farandole.data.staging.protocol import Assign, HostEntry

PATIENCE_S, TICK_S, READERS = 30.0, 0.5, 4


def entry(name: str, capacity: int, holds: Sequence[int], pieces: int) -> HostEntry:
    """A host with room, and the pieces that it has."""
    bits = np.zeros(pieces, bool)
    bits[list(holds)] = True
    return HostEntry(name, capacity, [], np.packbits(bits).tobytes())


@final
class Hosts:
    """Stagers of several hosts; each read of storage takes a while, fails or stands still until a heal."""

    def __init__(
        self,
        sizes: Sequence[int],
        entries: Sequence[HostEntry],
        chance: random.Random,
        *,
        failing: float = 0.0,
        stalled: Sequence[str] = (),
        heal_s: float = 1e9,
    ) -> None:
        self.sizes, self.chance, self.failing = np.array(sizes, np.int64), chance, failing
        self.stalled, self.heal_s = set(stalled), heal_s
        self.now = 0.0
        self.reads: Counter[int] = Counter()
        """Completed reads of storage by piece."""
        self.answers: list[tuple[str, int, PieceState]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waiting: dict[str, list[tuple[str, Fetch]]] = {each.name: [] for each in entries}
        self._needs: list[tuple[str, int]] = []
        held = {each.name: np.flatnonzero(np.unpackbits(np.frombuffer(each.holds, np.uint8))) for each in entries}
        self.boards = {each.name: Board(self.sizes, each.capacity, held[each.name].tolist()) for each in entries}
        self.assignments: dict[str, HostPlan] = {}
        self.assign(entries, 1)

    def assign(self, entries: Sequence[HostEntry], generation: int) -> None:
        """A generation begins, of the hosts in ``entries``."""
        request = Assign(generation, list(entries))
        for each in entries:
            self.assignments[each.name] = ours = HostPlan(request, each.name, self.sizes)
            order = list(range(len(self.sizes)))
            self.chance.shuffle(order)
            ours.assign_to(self.boards[each.name], order)

    def need(self, host: str, piece: int) -> None:
        """A worker of a host waits for a piece that is to be there."""
        if self.assignments[host].is_ours(piece):
            self._needs.append((host, piece))
            self.boards[host].demand(piece)

    def run(self, limit_s: float = 3600.0) -> None:
        """Go on until nothing happens any more; fails if that is never."""
        self._at(TICK_S, self._tick)
        while self._take() or self._events:
            self._settle()
            if not self._events:
                break
            self.now, _, do = heapq.heappop(self._events)
            assert self.now < limit_s, f"still waiting: {self._needs}"
            do()
        assert not self._needs, self._needs

    def _at(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), do))

    def _tick(self) -> None:
        for host, board in self.boards.items():
            for task in board.late(self.now, PATIENCE_S):
                board.demand(task.piece)
                self._ring(host)
        if any(board.running(self.now) for board in self.boards.values()) or self._needs:
            self._at(TICK_S, self._tick)

    def _take(self) -> bool:
        is_any = False
        for host, board in self.boards.items():
            while (task := board.next_fetch(self.now, board.busy() < READERS)) is not None:
                is_any = True
                self._begin(host, board, task)
        return is_any

    def _begin(self, host: str, board: Board, task: Fetch) -> None:
        others = [each for each, _ in board.running(self.now) if each.piece == task.piece and each != task]
        assert all(each in board._late for each in others), f"{host} fetches piece {task.piece} twice"
        drops = board.room_for(task.piece)
        if drops is None:
            board.failed(task, "no room", is_crowded=True)
            self._at(0.0, lambda: self._ring(host))
            return
        for piece in drops:
            board.forget(piece)
        under_way = {each.piece for each, _ in board.running(self.now)} - board.held
        assert board.used + sum(int(self.sizes[piece]) for piece in under_way) <= board.limit
        if task.source != SHARED:
            self._ask(host, task)
        elif host in self.stalled and self.now < self.heal_s:
            self._at(self.heal_s - self.now + 1, lambda: self._read(host, task))
        else:
            self._at(self.chance.expovariate(1.0), lambda: self._read(host, task))

    def _read(self, host: str, task: Fetch) -> None:
        if self.chance.random() < self.failing:
            self.boards[host].failed(task, "the storage says no")
        else:
            self.reads[task.piece] += 1
            self.boards[host].finished(task)
        self._ring(host)

    def _ask(self, asker: str, task: Fetch) -> None:
        """What the stager of the source answers: see ``Stager._look``."""
        host = task.source
        board = self.boards[host]
        if board.state_of(task.piece) is PieceState.HELD:
            self._at(0.1, lambda: self._arrive(asker, task))
        elif error := board.refusal(task.piece, asker, host):
            self._at(0.1, lambda: self._refused(asker, task, error))
        else:
            board.demand(task.piece)
            self._waiting[host].append((asker, task))

    def _arrive(self, asker: str, task: Fetch) -> None:
        if self.chance.random() < self.failing / 2:
            self._refused(asker, task, "damaged on the wire")
        else:
            self.boards[asker].finished(task)
            self._ring(asker)

    def _refused(self, asker: str, task: Fetch, why: str) -> None:
        self.boards[asker].failed(task, why)
        self._ring(asker)

    def _ring(self, host: str) -> None:
        waiting, self._waiting[host] = self._waiting[host], []
        for asker, task in waiting:
            self._ask(asker, task)

    def _settle(self) -> None:
        for host, piece in list(self._needs):
            state = self.boards[host].state_of(piece)
            if state in (PieceState.HELD, PieceState.FAILED):
                self._needs.remove((host, piece))
                self.answers.append((host, piece, state))
                self.boards[host].opened(piece)
            elif state is PieceState.ABSENT:  # it was here, and had to go again
                self.boards[host].demand(piece)
