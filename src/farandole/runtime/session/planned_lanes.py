"""Planned lanes of a session: the engines of collectives whose order every member knows, and what is told of them.

    engine = session.planned.engine(0, "optimizer.0")
    with session.planned.lane(0, "optimizer.0").next("bucket 1"):
        engine.barrier()

Threads. Any thread may make an engine, and use a lane that no other one uses; what they share has locks of its own.
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


@final
class PlannedLanes:
    """Planned lanes of one session; ``tell`` sends a message to the controller while there is one."""

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

    def engine(self, process_set: int, label: str, name: str = "", deadline_s: float = 0.0) -> Engine:
        """A new engine for collectives in an order that every member knows. Collective; ``shutdown`` closes it.

        ``name`` is that of another engine than the job's; with ``deadline_s`` a collective ends after that time.
        """
        ranks = self._sets.members(process_set, label)
        with self._reentry:
            return self._engines.engine(ranks, f"{label} of process set {process_set}", name, deadline_s)

    def exchange(self, process_set: int, key: str, payload: bytes) -> list[bytes]:
        """All-gather of small bytes among the members of a process set, by way of the controller. A key serves once."""
        if self._cells.gate is not None:
            self._cells.gate(process_set)
        return self._share(key, self._sets.members(process_set, key), payload)

    def lane(self, process_set: int, lane: str, prefix: str = "", sequence: int = 0) -> PlannedCollectives:
        """The context of the collectives of a planned lane, of which there were ``sequence``; ``prefix`` of reports."""
        return PlannedCollectives(
            self._active, self._reentry, self._explain, self._cells, process_set, lane, prefix, sequence
        )

    def meet_in_cell(self, process_set: int, number: int, what: str, payload: bytes) -> list[bytes]:
        """Gather what all members say where they come to the first collective of the cell with this ``number``.

        A lane for each: so ranks in different cells wait for each other, which the controller finds to be a deadlock.
        """
        self._active.reach(0, CELL, number)
        lane, members = f"{CELL} {number}", self._sets.members(process_set, what)
        ungated = CellState(self._active)  # it is the gate that leads here
        collectives = PlannedCollectives(self._active, self._reentry, self._explain, ungated, process_set, lane)
        with collectives.next(what, needs_all=True):
            said = self._share(f"{lane} {process_set}", members, payload)
        if before := self._cells.lanes.get(process_set):
            self._active.forget(process_set, before)  # all have passed that one, or they would not be here
        self._cells.lanes[process_set] = lane
        return said

    def adopt(self, number: int, ranks: tuple[int, ...]) -> None:
        """Take ``ranks`` for a group of this ``number``, which its members alone know: lanes and reports may name it.

        Each member calls it before its first lane there. The number is none that the controller gives: beyond 2^32.
        """
        self._sets.adopt(number, ranks)
        with contextlib.suppress(ControlError), self._reentry:
            self._tell(GroupMade(self._generation, number, list(ranks)))

    def closed(self, process_set: int, lane: str, sequence: int) -> None:
        """Tell the controller that this rank has given up a planned lane, after so many collectives, and stays.

        Members that come to another one raise ``MismatchError``, and so does this rank.
        """
        if process_set in self._sets and len(self._sets[process_set].ranks) > 1:  # it may have been removed
            # The first if the session is over, the second in a forked child, which may drop an optimizer of its parent.
            with contextlib.suppress(ControlError, NotInitializedError), self._reentry:
                self._tell(LaneClosed(self._generation, process_set, lane, sequence))
