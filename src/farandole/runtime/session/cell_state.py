"""State of a session with respect to the cells of a notebook, which its guard sets (``farandole.notebook.guard``)."""

# Threads. The main thread writes, where cells begin and end, and in the handler of SIGINT; the thread that begins a
# collective and the control thread read one reference at a time.

from __future__ import annotations

from collections.abc import Callable
from typing import final

from farandole.control.messages import ThreadWait


@final
class CellState:
    """Nothing is set where no notebook is."""

    __slots__ = ("gate", "interrupted", "lanes", "rest")

    def __init__(self) -> None:
        self.gate: Callable[[int], object] | None = None
        """Called with its process set before each collective, by any thread; it may raise."""
        self.rest: ThreadWait | None = None
        """The wait of a main thread in which no cell runs."""
        self.interrupted = False
        """True if this rank was interrupted: all ranks are to raise ``KeyboardInterrupt`` after the same step."""
        self.lanes: dict[int, str] = {}
        """The lane of the last cell in which each process set has met."""
