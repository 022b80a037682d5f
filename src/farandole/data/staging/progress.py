"""Progress of staging: bytes, rate and time left, as a bar on a terminal and as lines in a log.

await_staged(data)                  # every rank calls it; rank 0 shows the bar
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple, final

from farandole.data.formats.source import Source
from farandole.data.planning.simulate import readable
from farandole.data.staging.staged_files import StagedFiles
from farandole.errors import DataError, UsageError
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current, is_initialized

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY_S = 0.25
SLOW_S = 10.0
"""Seconds after which a slow read is reported."""
IN_LOG_S = 5.0
"""Interval of the lines if the output is no terminal."""


def await_staged(data: Source, *, title: str = "staging") -> None:
    """Wait until every host holds its part of the staged ``data``. Every rank calls this.

    If the data are larger than all caches, that is what the caches keep.

    Raises ``UsageError`` for data that are not staged, ``DataError`` if a part cannot be fetched.
    """
    store = data.store
    if not isinstance(store, StagedFiles):
        raise UsageError("await_staged() of data that are not staged: make them with hvd.data.stage(...)")
    many = is_initialized() and current().topology.size > 1
    is_leader = not many or current().topology.local_rank == 0
    if many:
        current().mllog("staging_start", None, {})
    shown = Bar(title) if not many or current().topology.rank == 0 else None
    while True:
        mine = _state(store) if is_leader else HostState()
        every: list[HostState] = allgather_object(mine, name="farandole.data.staged") if many else [mine]
        slowest = max(every, key=lambda each: each.waits_s)
        if shown is not None:
            shown.show(sum(each.held for each in every), sum(each.wanted for each in every), slowest.words)
        if errors := [each.error for each in every if each.error]:
            raise DataError(errors[0])
        if all(each.held >= each.wanted for each in every):
            break
        if slowest.waits_s > store.link.config.give_up_s:
            raise DataError(f"staging has stopped: {slowest.words}; is the shared storage well?")
        time.sleep(EVERY_S)
    if many:
        current().mllog("staging_stop", None, {})
    if shown is not None:
        shown.close()


class HostState(NamedTuple):
    """Bytes that a host is to hold, bytes that it holds, and the error or slow read that delays the rest."""

    wanted: int = 0
    held: int = 0
    error: str = ""
    waits_s: float = 0.0
    words: str = ""


def _state(store: StagedFiles) -> HostState:
    try:
        found = store.link.statistics()
    except DataError as error:
        return HostState(error=str(error))
    path, offset, waits_s = max(found.reading, key=lambda each: each[2], default=("", 0, 0.0))
    words = f"{store.link.config.host} waits for {path} at byte {offset}, {waits_s:.0f} s" if waits_s > SLOW_S else ""
    return HostState(found.wanted_bytes, found.held_bytes, found.error, waits_s, words)


@final
class Bar:
    """Progress bar of rich on a terminal; elsewhere a line every few seconds."""

    def __init__(self, title: str, unit: str = "") -> None:
        self._title, self._unit = title, unit
        self._begun_s, self._said_s = time.monotonic(), 0.0
        self._first: int | None = None
        self._bar = _rich_bar(title, unit) if sys.stderr.isatty() else None

    def show(self, done: int, total: int, trouble: str = "") -> None:
        """Show that ``done`` of ``total`` are there, and ``trouble``, the slow read of a host."""
        self._first = done if self._first is None else self._first
        if self._bar is not None:
            words = f"{self._title} ({trouble})" if trouble else self._title
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=words)
            return
        now = time.monotonic()
        if done >= total or now - self._said_s >= IN_LOG_S:
            self._said_s = now
            words = f"{self._words(done, total, now - self._begun_s)}{trouble and f'; {trouble}'}"
            print(f"farandole: {words}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _words(self, done: int, total: int, elapsed_s: float) -> str:
        rate = (done - (self._first or 0)) / elapsed_s if elapsed_s > 0 else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else f", {elapsed_s:.0f} s"
        if self._unit:
            return f"{self._title}: {done} of {total} {self._unit}{left}"
        return f"{self._title}: {readable(done)} of {readable(total)}, {readable(round(rate))}/s{left}"


def _rich_bar(title: str, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counts = (MofNCompleteColumn(), unit) if unit else (DownloadColumn(), TransferSpeedColumn())
    bar = Progress(title, BarColumn(), *counts, TimeRemainingColumn(), console=Console(stderr=True))
    bar.add_task(title, total=None)
    bar.start()
    return bar
