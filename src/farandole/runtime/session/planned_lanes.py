"""Planned lanes of a session: engines of collectives whose order every member knows, and reports about them.

    engine = session.planned.engine(0, "optimizer.0")
    with session.planned.lane(0, "optimizer.0").next("bucket 1"):
        engine.barrier()

Threads. Any thread may make an engine, and use a lane that no other thread uses; shared parts have their own locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import final

from farandole.control.message import Message
from farandole.control.messages import GroupMade, LaneClosed
from farandole.engines.engine import Engine, Share
from farandole.errors import ControlError, NotInitializedError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.cell_state import CELL, CellState
from farandole.runtime.session.engine_pool import EnginePool
from farandole.runtime.session.planned_collective import PlannedCollectives
from farandole.runtime.session.process_sets import Registry

ENGINE = "engine"
"""Name of the lane, after that of the collectives, in which all members make their engine."""


@final
class PlannedLanes:
    """Planned lanes of one session; ``tell`` sends a message to the controller, if there is one."""

    def __init__(
        self,
        generation: int,
        sets: Registry,
        engines: EnginePool,
        share: Share,
        tell: Callable[[Message], None],
        active: ActiveCollectives,
        reentry: Reentry,
        explain: Callable[[], None],
        cells: CellState,
    ) -> None:
        self._generation, self._sets, self._engines, self._share, self._tell = generation, sets, engines, share, tell
        self._active, self._reentry, self._explain, self._cells = active, reentry, explain, cells
        self._connecting: dict[tuple[int, str], PlannedCollectives] = {}
        """Lanes in which engines are made, by process set and label: the second of a label is the next collective."""

    def engine(
        self,
        process_set: int,
        label: str,
        name: str = "",
        deadline_s: float = 0.0,
        waits: PlannedCollectives | None = None,
    ) -> Engine:
        """Make an engine for collectives in an order that every member knows. Collective; ``shutdown`` closes it.

        ``name``: another engine than the job's; ``deadline_s``: time limit of a collective. ``waits``: context of the
        lane that gets the engine, in which connecting is the next collective; default: a lane of its own.
        """
        ranks = self._sets.members(process_set, label)
        # If a member leaves meanwhile, the others fail and ask the controller why, which answers ranks that wait.
        parts = self._active, self._reentry, self._explain, CellState(self._active)  # without a gate
        lane = PlannedCollectives(*parts, process_set, f"{label} {ENGINE}", f"{label}: ")
        waits = waits or self._connecting.setdefault((process_set, label), lane)
        with waits.next("connecting", needs_all=True):
            return self._engines.engine(ranks, f"{label} of process set {process_set}", name, deadline_s)

    def exchange(self, process_set: int, key: str, payload: bytes) -> list[bytes]:
        """All-gather a few bytes among the members of a process set, through the controller. Each key is used once."""
        if self._cells.gate is not None:
            self._cells.gate(process_set)
        return self._share(key, self._sets.members(process_set, key), payload)

    def lane(self, process_set: int, lane: str, prefix: str = "", sequence: int = 0) -> PlannedCollectives:
        """Context of the collectives of a planned lane after the first ``sequence``; ``prefix`` is for reports."""
        return PlannedCollectives(
            self._active, self._reentry, self._explain, self._cells, process_set, lane, prefix, sequence
        )

    def meet_in_cell(self, process_set: int, number: int, what: str, payload: bytes) -> list[bytes]:
        """All-gather ``payload`` among the members at the first collective of the cell with this ``number``.

        Each cell has its own lane: ranks in different cells wait for each other, and the controller finds the deadlock.
        """
        self._active.reach(0, CELL, number)
        lane, members = f"{CELL} {number}", self._sets.members(process_set, what)
        ungated = CellState(self._active)  # the gate itself calls this method
        collectives = PlannedCollectives(self._active, self._reentry, self._explain, ungated, process_set, lane)
        with collectives.next(what, needs_all=True):
            said = self._share(f"{lane} {process_set}", members, payload)
        if before := self._cells.lanes.get(process_set):
            self._active.forget(process_set, before)  # all members have passed that lane
        self._cells.lanes[process_set] = lane
        return said

    def adopt(self, number: int, ranks: tuple[int, ...]) -> None:
        """Register ``ranks`` as a group ``number`` known only to its members, for use in lanes and reports.

        Each member calls it before its first lane there. Numbers above 2^32 are never assigned by the controller.
        """
        self._sets.adopt(number, ranks)
        with contextlib.suppress(ControlError), self._reentry:
            self._tell(GroupMade(self._generation, number, list(ranks)))

    def closed(self, process_set: int, lane: str, sequence: int) -> None:
        """Tell the controller that this rank has closed a lane after ``sequence`` collectives, and stays in the job.

        Members that begin another collective there raise ``MismatchError``, and so does this rank.
        """
        if process_set in self._sets and len(self._sets[process_set].ranks) > 1:  # the set may be removed
            # ControlError: the session is over; NotInitializedError: a forked child drops an optimizer of its parent.
            with contextlib.suppress(ControlError, NotInitializedError), self._reentry:
                self._tell(LaneClosed(self._generation, process_set, lane, sequence))
