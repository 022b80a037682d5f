"""Context of the collectives of one planned lane: it registers them as active, and replaces errors by their cause.

collectives = PlannedCollectives(active, reentry, explain, cells, 0, "optimizer.0", "optimizer.0: ")
with collectives.next("bucket 1", needs_all=True):
    engine.allreduce(...)
"""

# A step of a small model has two such contexts, and between the framework's own work each Python call costs 0.5 us,
# because its code has dropped out of the caches. So there is one object per lane, not per collective, and it does
# inline what ``Reentry`` does on entering and leaving, and what ``ActiveCollectives`` does on leaving.
#
# Threads. One thread at a time uses a lane, except for a background thread that an interrupted script left in it. A
# signal handler may run between any two lines. Between ``next`` and ``__enter__`` it may run a collective of the lane:
# hence a stack. From the last line of ``enter`` on, one operation, until ``exit`` its collective is refused, by
# thread, process set and lane, because the lane's engine is busy. An exception of the handler may keep the thread from
# leaving: then the next collective of the lane finds that no frame of its stack has entered (``Reentry``).

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import TypeAlias, final

from farandole.errors import AbortError, EngineError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.lane import interrupted
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.cell_state import CellState

CONSEQUENCES = (AbortError, EngineError)
"""Errors of an engine after another rank left or died; the controller knows the cause."""

_Next: TypeAlias = tuple[int, str, bool, bool]
"""Arguments of ``ActiveCollectives.enter``: sequence, description, ``needs_all``, ``joined``."""


@final
class PlannedCollectives:
    """Context manager of the collectives of a lane after the first ``sequence``; call ``next`` before each entry."""

    __slots__ = ("_active", "_cells", "_explain", "_lane", "_next", "_prefix", "_process_set", "_reentry", "sequence")

    def __init__(
        self,
        active: ActiveCollectives,
        reentry: Reentry,
        explain: Callable[[], None],
        cells: CellState,
        process_set: int,
        lane: str,
        prefix: str = "",
        sequence: int = 0,
    ) -> None:
        self._active, self._reentry, self._explain, self._cells = active, reentry, explain, cells
        self._process_set, self._lane, self._prefix = process_set, lane, prefix
        self._next: list[_Next] = []
        self.sequence = sequence
        """Number of collectives of the lane so far."""

    def next(self, what: str, needs_all: bool = False, joined: bool = False) -> PlannedCollectives:
        """Context of the next collective; stall reports name it by the prefix and ``what``.

        ``needs_all``: it cannot end before every member has begun it; ``joined``: it is never reported as a stall.
        Raises ``UsageError`` in a signal handler that interrupted this lane: then the call does not count as a
        collective of the lane.
        """
        if self._cells.gate is not None:
            self._cells.gate(self._process_set)
        # Only this lane is checked: a handler's collective on another planned lane has its own engine, and is allowed.
        is_inside = (get_ident(), self._process_set, self._lane) in self._active.inside
        if is_inside and self._reentry.here():
            raise interrupted(f"{self._prefix}{what}", "another collective of the same lane")
        self.sequence += 1  # after the check: a refused call must not shift the count against the other members
        self._next.append((self.sequence, f"{self._prefix}{what}", needs_all, joined))
        return self

    def __enter__(self) -> None:
        reentry = self._reentry
        if reentry.is_forsaken:
            reentry.refuse()
        entry = get_ident(), sys._getframe(1)
        reentry.entries.append(entry)
        try:
            sequence, what, needs_all, joined = self._next.pop()
            self._active.enter(self._process_set, self._lane, sequence, what, needs_all, joined)
        except BaseException:
            self._active.exit(self._process_set, self._lane)
            reentry.entries.remove(entry)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is not None and isinstance(error, CONSEQUENCES):
                self._explain()  # before ``exit``: it reports the collective that blocks this rank
        finally:
            me = get_ident()
            self._active.inside.pop((me, self._process_set, self._lane), None)  # as ``exit``
            self._reentry.entries.remove((me, sys._getframe(1)))
