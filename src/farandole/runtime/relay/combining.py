"""Combining of submissions on their way up: one message for all ranks below with the same entry; without any I/O.

    combining = Combining(downlink)
    combining.submit(RankSet.of([4]), entry, now)      # rank 4 is ready
    combining.submit(RankSet.of([5]), entry, now)      # rank 5, the last rank below, is ready
    combining.pop_due(now)                             # [SharedEntry(entry)]: all ranks below are ready
    combining.deadline_s                               # None: no entry waits

An entry waits, at most ``HOLD_S``, until all ranks below that are in its process set and have not joined have submitted
it. Then it is passed on for the ranks that have, because the controller must know which are missing. This module
decides nothing and drops nothing, and a rank's join never overtakes its earlier submissions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeAlias, final

import msgspec

from farandole.collective import Kind
from farandole.control.messages import Entry, Order, SharedEntry
from farandole.runtime.coordination.downlink import Downlink
from farandole.runtime.coordination.rank_set import RankSet

HOLD_S = 0.25
"""Longest time that an entry waits for more ranks; reached only if a rank is late."""

_Key: TypeAlias = tuple[int, str]


@final
@dataclass(slots=True)
class _Held:
    """Entries under one name: the ranks that have submitted, and the shares not passed on yet."""

    arrived: RankSet
    due_s: float
    shares: dict[int | bytes, tuple[Entry, RankSet]] = field(default_factory=dict)


@final
class Combining:
    """Submissions that a relay holds; ``downlink`` knows the ranks below and their process sets."""

    def __init__(self, downlink: Downlink, hold_s: float = HOLD_S) -> None:
        self.deadline_s: float | None = None
        """Time at which ``pop_due`` may have incomplete entries to pass on."""
        self._downlink, self._hold_s = downlink, hold_s
        self._held: dict[_Key, _Held] = {}
        self._complete: list[SharedEntry] = []
        self._joined = RankSet()
        self._joins = _Held(RankSet(), math.inf)

    def begin(self) -> None:
        """Drop all submissions: a generation begins or ends."""
        self._held, self._complete, self.deadline_s = {}, [], None
        self._joined, self._joins = RankSet(), _Held(RankSet(), math.inf)

    # -- submissions --------------------------------------------------------------------------------------------------

    def submit(self, ranks: RankSet, entry: Entry, now: float) -> None:
        """Record that ``ranks`` are ready for ``entry``."""
        if entry.signature is not None and entry.signature.kind == Kind.JOIN:
            self._join(ranks, entry, now)
            return
        key = (entry.process_set, entry.name)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(RankSet(), now + self._hold_s)
        elif not held.shares:
            held.due_s = now + self._hold_s
        _add(held, ranks, entry)
        if self._is_complete(key, held):
            self._release(key, held)
            del self._held[key]
        elif self.deadline_s is None:
            self.deadline_s = held.due_s

    def ordered(self, order: Order, ranks: RankSet) -> None:
        """Let ``ranks`` submit the names of ``order`` again: they have received the order."""
        for name in order.names:
            self.forget((order.process_set, name), ranks)
        if order.kind == Kind.JOIN:
            self._joined -= ranks

    def forget(self, key: tuple[int, str], ranks: RankSet) -> None:
        """Expect ``ranks`` to submit this name again."""
        held = self._held.get(key)
        if held is not None:
            held.arrived -= ranks
            if not held.arrived and not held.shares:
                del self._held[key]

    def _join(self, ranks: RankSet, entry: Entry, now: float) -> None:
        """Stop waiting for ``ranks``; their join is passed on with the next collective, or alone after ``HOLD_S``."""
        if not self._joins.shares:
            self._joins.due_s = now + self._hold_s
        _add(self._joins, ranks, entry)
        self._joined |= ranks
        for key, held in list(self._held.items()):
            if self._is_complete(key, held):
                self._release(key, held)
                del self._held[key]
        if self.deadline_s is None:
            self.deadline_s = self._joins.due_s

    # -- passing on ---------------------------------------------------------------------------------------------------

    def pop_due(self, now: float) -> list[SharedEntry]:
        """Remove and return the shares to pass on now."""
        if self.deadline_s is not None and self.deadline_s <= now:
            self._expire(now)
        if self._joins.shares and (self._complete or self._joins.due_s <= now or self._downlink.ranks <= self._joined):
            for key, held in self._held.items():  # complete or not: a join must not overtake earlier submissions
                self._release(key, held)
            self._complete += self._shares((0, ""), self._joins)
        shares, self._complete = self._complete, []
        return shares

    def _expire(self, now: float) -> None:
        self.deadline_s = self._joins.due_s if self._joins.shares and self._joins.due_s > now else None
        for key, held in self._held.items():
            if held.shares and held.due_s <= now:
                self._release(key, held)
            elif held.shares and (self.deadline_s is None or held.due_s < self.deadline_s):
                self.deadline_s = held.due_s

    def _is_complete(self, key: _Key, held: _Held) -> bool:
        members = self._downlink.sets.get(key[0])
        return members is None or members & self._downlink.ranks <= held.arrived | self._joined

    def _release(self, key: _Key, held: _Held) -> None:
        self._complete += self._shares(key, held)

    def _shares(self, key: _Key, held: _Held) -> list[SharedEntry]:
        everybody = self._downlink.sets.get(key[0], RankSet()) & self._downlink.ranks
        shares = [
            SharedEntry(entry, [] if ranks == everybody else ranks.spans()) for entry, ranks in held.shares.values()
        ]
        held.shares = {}
        return shares


def _add(held: _Held, ranks: RankSet, entry: Entry) -> None:
    """Add ranks that submit ``entry`` to the ranks that submitted the same entry before."""
    said = entry.cached if entry.cached >= 0 else msgspec.msgpack.encode(entry.signature)
    _, before = held.shares.get(said, (entry, RankSet()))
    held.shares[said] = (entry, before | ranks)
    held.arrived |= ranks
