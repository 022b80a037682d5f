"""Context of the collectives of one planned lane: others see that this rank is in one, and its errors say the cause.

collectives = PlannedCollectives(active, reentry, explain, cells, 0, "optimizer.0")
with collectives.next("bucket 1", needs_all=True):
    engine.allreduce(...)
"""

# A step of a small model has two such contexts, and between the framework's own work each call of Python costs 0.5 us,
# as its code is in no cache any more. So there is one object for a lane, not one for each collective, and it does by
# itself what ``Reentry`` does on entering and leaving. One thread at a time uses a lane, so no other one comes between
# ``next`` and ``__enter__``; a signal handler may, whose collective then has taken the number that this one is told by.

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from farandole.errors import AbortError, EngineError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.lane import interrupted
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.cell_state import CellState

CONSEQUENCES = (AbortError, EngineError)
"""Errors of an engine where another rank has left or died, for which the controller knows the cause."""

_NOBODY = 0
"""No identifier of a thread."""


@final
class PlannedCollectives:
    """Context manager of the collectives of a lane, after the first ``sequence``; entered with ``next`` each time."""

    __slots__ = (
        "_active",
        "_cells",
        "_explain",
        "_joined",
        "_lane",
        "_needs_all",
        "_process_set",
        "_reentry",
        "_thread",
        "_what",
        "sequence",
    )

    def __init__(
        self,
        active: ActiveCollectives,
        reentry: Reentry,
        explain: Callable[[], None],
        cells: CellState,
        process_set: int,
        lane: str,
        sequence: int = 0,
    ) -> None:
        self._active, self._reentry, self._explain, self._cells = active, reentry, explain, cells
        self._process_set, self._lane = process_set, lane
        self._what, self._needs_all, self._joined = "", False, False
        self._thread = _NOBODY
        self.sequence = sequence
        """Number of the lane's collectives so far."""

    def next(self, what: str, needs_all: bool = False, joined: bool = False) -> PlannedCollectives:
        """Context of the next collective; stall reports say ``what``.

        One that ``needs_all`` cannot end before each member has come; one that has ``joined`` is no stall, however long
        it lasts. Raises ``UsageError`` in a signal handler that has interrupted this lane: then it is none of the
        lane's collectives.
        """
        if self._cells.gate is not None:
            self._cells.gate(self._process_set)
        # Asked of this lane only: a handler's collective of another planned lane has an engine of its own, and is done.
        if self._thread == threading.get_ident():  # its engine is in the middle of something
            raise interrupted(f"{self._lane}: {what}", "another collective of the same lane")
        self.sequence += 1  # what was refused is not counted: a number more than the other members have would stay
        self._what, self._needs_all, self._joined = f"{self._lane}: {what}", needs_all, joined
        return self

    def __enter__(self) -> None:
        reentry = self._reentry
        if reentry.is_forsaken:
            reentry.refuse()
        self._thread = me = threading.get_ident()
        reentry.threads.append(me)
        self._active.enter(self._process_set, self._lane, self.sequence, self._what, self._needs_all, self._joined)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            if error is not None and isinstance(error, CONSEQUENCES):
                self._explain()  # before leaving: it reports what this rank is blocked in
        finally:
            self._active.leave(self._process_set, self._lane)
            self._reentry.threads.remove(self._thread)
            self._thread = _NOBODY
