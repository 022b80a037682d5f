"""Recording of a job: from the messages of its controller to the folder of the run, and to its hub.

recording = Recording(writer, hub, exports=[])
recording.record_message(RankMetrics(...))
recording.end(0, "", time.time())

A full disk ends the record, with a line on the page, and not the view.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, final

import msgspec

from farandole.control.watch_messages import (
    Announced,
    Ended,
    Members,
    Missed,
    OrderNews,
    Printed,
    RankMetrics,
    TrialNews,
)
from farandole.monitor.exports import Export
from farandole.monitor.folder import MarkRecord, MemberRecord, PointRecord, Record, RunWriter, TrialRecord
from farandole.monitor.hub import Hub

logger = logging.getLogger("farandole.monitor")


@final
class Recording:
    """Recording of one job, in one thread. Without a ``writer``, only the hub is updated: another process records."""

    def __init__(self, writer: RunWriter | None, hub: Hub, exports: Sequence[Export] = ()) -> None:
        self._hub, self._exports = hub, list(exports)
        self._writer, self._is_written = writer, True

    def record_message(self, message: Any) -> None:
        """Handle a message of the controller."""
        if isinstance(message, RankMetrics):
            self._record(PointRecord(message.rank, message.generation, message.points, message.dropped))
            for time_s, text in message.notes if message.rank == 0 else ():
                self._record(MarkRecord(time_s, "recovery", text))
        elif isinstance(message, Members):
            self._hub.resizable = message.resizable
            self._record(MemberRecord(message.time_s, message.generation, message.hosts))
        elif isinstance(message, Ended):
            self._hub.interrupted()
            self._record(MarkRecord(message.time_s, "fault", message.reason))
        elif isinstance(message, Printed):
            self._print(message)
        elif isinstance(message, Announced | TrialNews):
            self._record(_record_of(message))
        elif isinstance(message, OrderNews):
            self._hub.order(message)
            if message.state == "acted":
                text = message.text if self._hub.info.search else f"{message.verb}: {message.text}"
                self._record(MarkRecord(message.time_s, "order", text, message.step))
        elif isinstance(message, Missed):
            self._hub.lost += message.count

    def _print(self, message: Printed) -> None:
        if (writer := self._writer) is not None:
            self._save(lambda: writer.output(message.stream, message.text))
        self._hub.print(message.time_s, message.stream, message.text.decode(errors="replace").splitlines())

    def cell(self, text: str, time_s: float) -> None:
        """Note that a cell of a notebook begins or, if ``text`` is empty, that no cell runs any more."""
        self._hub.cell(is_running=bool(text))
        if text:
            self._record(MarkRecord(time_s, "note", text))

    def end(self, status: int, words: str, time_s: float) -> None:
        """Note that the job is over, and close the record."""
        self._hub.end(status, words, time_s)
        if self._writer is not None:
            self._save(self._writer.describe)
        for export in self._exports:
            self._save(export.close)
        if self._writer is not None:
            self._writer.close()
        self._is_written = False  # later messages, as of ranks that train on, are only shown

    def _record(self, record: Record) -> None:
        self._hub.add_record(record)
        if (writer := self._writer) is not None:
            self._save(lambda: writer.append(record))
        for export in self._exports:
            self._save(lambda export=export: export.write_record(record))  # type: ignore[misc]

    def _save(self, work: Callable[[], object]) -> None:
        if not self._is_written:
            return
        try:
            work()
        except OSError as error:
            self._is_written = False
            text = f"the record{f' in {self._writer.path}' if self._writer else ''} ends here: {error.strerror}"
            logger.warning("%s", text)
            self._hub.add_record(MarkRecord(self._hub.info.began_s, "fault", text))


def _record_of(message: Announced | TrialNews) -> Record:
    if isinstance(message, TrialNews):
        return TrialRecord(**msgspec.structs.asdict(message))
    return MarkRecord(message.time_s, "note", message.text)
