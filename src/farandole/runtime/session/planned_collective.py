"""Context of the collectives of one planned lane: others see that this rank is in one, and its errors say the cause.

collectives = PlannedCollectives(active, reentry, explain, cells, 0, "optimizer.0", "optimizer.0: ")
with collectives.next("bucket 1", needs_all=True):
    engine.allreduce(...)
"""

# A step of a small model has two such contexts, and between the framework's own work each call of Python costs 0.5 us,
# as its code is in no cache any more. So there is one object for a lane, not one for each collective, and it does by
# itself what ``Reentry`` does on entering and leaving, and what ``ActiveCollectives`` does on leaving.
#
# Threads. One at a time uses a lane, but for a background thread that an interrupted script has left in it. A signal
# handler comes between any two lines. Between ``next`` and ``__enter__`` it may have a collective of the same lane:
# hence a stack. From the last line of ``enter`` on, which is one operation, until ``leave`` it is refused, by thread,
# process set and lane, as the engine of the lane is in the middle of something. What it raises may keep the thread from
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
"""Errors of an engine where another rank has left or died, for which the controller knows the cause."""

_Next: TypeAlias = tuple[int, str, bool, bool]
"""Arguments of ``ActiveCollectives.enter``: sequence, description, whether it needs all, whether this rank joined."""


@final
class PlannedCollectives:
    """Context manager of the collectives of a lane, after the first ``sequence``; entered with ``next`` each time."""

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
        """Number of the lane's collectives so far."""

    def next(self, what: str, needs_all: bool = False, joined: bool = False) -> PlannedCollectives:
        """Context of the next collective; stall reports say ``what``, after the prefix.

        One that ``needs_all`` cannot end before each member has come; one that has ``joined`` is no stall, however long
        it lasts. Raises ``UsageError`` in a signal handler that has interrupted this lane: then it is none of the
        lane's collectives.
        """
        if self._cells.gate is not None:
            self._cells.gate(self._process_set)
        # Asked of this lane only: a handler's collective of another planned lane has an engine of its own, and is done.
        is_inside = (get_ident(), self._process_set, self._lane) in self._active.inside
        if is_inside and self._reentry.here():
            raise interrupted(f"{self._prefix}{what}", "another collective of the same lane")
        self.sequence += 1  # what was refused is not counted: a number more than the other members have would stay
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
            self._active.leave(self._process_set, self._lane)
            reentry.entries.remove(entry)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is not None and isinstance(error, CONSEQUENCES):
                self._explain()  # before leaving: it reports what this rank is blocked in
        finally:
            me = get_ident()
            self._active.inside.pop((me, self._process_set, self._lane), None)  # as ``leave`` does
            self._reentry.entries.remove((me, sys._getframe(1)))
