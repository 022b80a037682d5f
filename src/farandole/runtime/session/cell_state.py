"""State of a session in a notebook, set at the beginning and end of cells by ``farandole.notebook.guard``."""

# Threads. The main thread writes, at the beginning and end of cells, and in the handler of SIGINT; the threads that
# begin collectives and the control thread each read one reference at a time.

from __future__ import annotations

from collections.abc import Callable
from typing import final

from farandole.control.messages import ThreadWait
from farandole.runtime.lanes.active_collectives import ActiveCollectives

CELL = "cell"
"""Lane of the exchanges with which the ranks of a notebook begin a cell."""


@final
class CellState:
    """Gate of the collectives of a cell, rest between cells, interrupts; all unset outside of a notebook."""

    __slots__ = ("_active", "gate", "interrupted", "lanes", "rest", "withdraw")

    def __init__(self, active: ActiveCollectives) -> None:
        self._active = active
        self.gate: Callable[[int], object] | None = None
        """Called before each collective, with its process set, in any thread; it may raise."""
        self.rest: ThreadWait | None = None
        """The wait of the main thread while no cell runs."""
        self.interrupted = False
        """True if this rank was interrupted: all ranks will raise ``KeyboardInterrupt`` after the same step."""
        self.withdraw: Callable[[], object] = lambda: None
        """Callback that drops orders that no step of the cell has obeyed."""
        self.lanes: dict[int, str] = {}
        """Lane of the last cell that each process set began, by set."""

    def rest_after(self, number: int, token: int, what: str) -> None:
        """Note that no cell runs here after cell ``number``: the next collective belongs to a later cell.

        Ranks still in that cell that wait for this rank would wait forever; the controller detects that.
        """
        self._active.reach(0, CELL, number + 1)  # first: ranks at rest do not wait for each other
        self.rest = ThreadWait(token, 0, what, lane=CELL, sequence=number + 1)
        self.withdraw()  # now: a later order finds the rank at rest
