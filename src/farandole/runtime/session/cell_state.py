"""State of a session with respect to the cells of a notebook, which its guard sets (``farandole.notebook.guard``)."""

# Threads. The main thread writes, where cells begin and end, and in the handler of SIGINT; the thread that begins a
# collective and the control thread read one reference at a time.

from __future__ import annotations

from collections.abc import Callable
from typing import final

from farandole.control.messages import ThreadWait
from farandole.runtime.lanes.active_collectives import ActiveCollectives

CELL = "cell"
"""Lane of the meetings in which ranks of a notebook begin a cell."""


@final
class CellState:
    """Gate of the collectives of a cell, rest between cells, interrupts; nothing is set where no notebook is."""

    __slots__ = ("_active", "gate", "interrupted", "lanes", "rest", "withdraw")

    def __init__(self, active: ActiveCollectives) -> None:
        self._active = active
        self.gate: Callable[[int], object] | None = None
        """Called with its process set before each collective, by any thread; it may raise."""
        self.rest: ThreadWait | None = None
        """The wait of a main thread in which no cell runs."""
        self.interrupted = False
        """True if this rank was interrupted: all ranks are to raise ``KeyboardInterrupt`` after the same step."""
        self.withdraw: Callable[[], object] = lambda: None
        """Has orders forgotten that no step of the cell has obeyed."""
        self.lanes: dict[int, str] = {}
        """The lane of the last cell in which each process set has met."""

    def rest_after(self, number: int, token: int, what: str) -> None:
        """Note that no cell runs any more here, after that with this ``number``: the next collective is in a later one.

        Ranks that are still in that cell, and wait for this one, then wait for ever, which the controller finds.
        """
        self._active.reach(0, CELL, number + 1)  # first: ranks that are all at rest do not wait for each other
        self.rest = ThreadWait(token, 0, what, lane=CELL, sequence=number + 1)
        self.withdraw()  # now: an order that comes later finds the rank at rest
