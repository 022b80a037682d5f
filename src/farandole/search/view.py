"""View of a search: a table of its trials in a terminal, or one line for each change in another stream.

with SearchView(study, sizes, folder, sys.stderr) as view:
    view.show("trial 3, epoch 1: 0.25; paused")
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from farandole.search.advisor import Phase
from farandole.search.study import HELD, Study, StudyTrial

VERBS: dict[Phase, str] = {
    "running": "leaves its workers",
    "paused": "pauses",
    "complete": "is complete",
    "pruned": "stops",
    "failed": "has failed",
}


def of_report(number: int, epoch: int, value: float, phase: Phase, decision: tuple[bool, str]) -> str:
    """Text on a report: the value, and the decision (whether the trial goes on, and why), if there is one.

    >>> of_report(3, 1, 0.25, "paused", (False, "3rd of 4 at epoch 1; the best 1 goes on"))
    'trial 3 pauses: 3rd of 4 at epoch 1; the best 1 goes on (epoch 1: 0.25)'
    >>> of_report(3, 2, 0.25, "running", (True, ""))
    'trial 3, epoch 2: 0.25'
    """
    goes_on, reason = decision
    if not reason:
        return f"trial {number}, epoch {epoch}: {value:.6g}"
    verb = "goes on" if goes_on else "pauses" if reason == HELD else VERBS[phase]
    return f"trial {number} {verb}: {reason} (epoch {epoch}: {value:.6g})"


ROWS = 12
"""Number of trials in the table: those that run, and the best of the others."""

REDRAW_S = 0.2
"""Shortest time between two drawings."""

STYLES = {"running": "cyan", "paused": "yellow", "complete": "green", "pruned": "dim", "failed": "red"}


@final
class SearchView:
    """View of ``study``; ``size`` returns the number of workers of a trial. Nothing is shown without a ``stream``."""

    def __init__(self, study: Study, size: Callable[[int], int], folder: Path, stream: TextIO | None) -> None:
        self._study, self._size, self._folder, self._stream = study, size, folder, stream
        self._begun_s = time.monotonic()
        self._drawn_s = -math.inf
        self._held = contextlib.ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> SearchView:
        if self._stream is not None and self._stream.isatty():
            console = Console(file=self._stream)
            # Drawn by this thread alone: a search has no other thread, and a fork while a thread draws would hang.
            self._live = self._held.enter_context(Live(console=console, auto_refresh=False, transient=True))
        elif self._stream is not None:
            self._print_line(f"search in {self._folder}: {self._study.plan.trials} trials")
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        if self._stream is not None:
            width = None if self._stream.isatty() else 80
            Console(file=self._stream, width=width).print(self.table(with_all=True))

    def show(self, what: str) -> None:
        """Show a change."""
        if self._live is not None:
            if time.monotonic() >= self._drawn_s + REDRAW_S:
                self._drawn_s = time.monotonic()
                self._live.update(Group(self.table(), Text(what, style="dim", no_wrap=True)), refresh=True)
        elif self._stream is not None and what:
            self._print_line(what)

    def table(self, *, with_all: bool = False) -> Table:
        """Table of the running trials and the best of the others, for 80 columns."""
        study, names = self._study, list(self._study.plan.space.parameters)
        table = Table(title=study.summary, title_justify="left", pad_edge=False)
        for name in ("trial", "state", "on", "epoch", "value"):
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        for name in names:
            table.add_column(name, justify="right", overflow="ellipsis", no_wrap=True)
        rows = self._in_order()
        for row in rows if with_all and len(rows) <= 2 * ROWS else rows[:ROWS]:
            size = self._size(row.number) if row.is_active else 0
            value = "" if row.value is None else f"{row.value:.5g}"
            table.add_row(
                str(row.number),
                Text(row.phase, style=STYLES[row.phase]),
                str(size) if size else "",
                f"{row.epoch}/{row.goal}",
                f"{value}*" if row is study.best else value,
                *(_short(row.parameters[name]) for name in names),
            )
        left = len(rows) - len(table.rows)
        if left:
            table.caption = f"{left} more"
        return table

    def _in_order(self) -> list[StudyTrial]:
        def place(row: StudyTrial) -> tuple[bool, int, float, int]:
            rung, loss = self._study.rung(row)
            return not row.is_active, -rung, loss, row.number

        return sorted(self._study.rows, key=place)

    def _print_line(self, text: str) -> None:
        assert self._stream is not None
        seconds = time.monotonic() - self._begun_s
        self._stream.write(f"[{seconds:8.1f} s] {text}\n")
        self._stream.flush()


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
