"""Timeline of all ranks in one Chrome trace (chrome://tracing, ui.perfetto.dev).

    create("trace.json")                                   # once, on rank 0
    recorder = Recorder(0, "a", 0.0, settings, reentry)    # on every rank
    recorder.record("trace.json", mark_cycles=False)
    ...
    recorder.close()

The file is a JSON array without its closing bracket, which the format allows: ranks append batches of complete lines,
each with one ``write``, so it can be read at any moment and after any crash. Times use the controller's clock.

Threads. Any thread emits events, and must not wait for a disk: it only appends to ``_events``, a ``deque``, whose
``append`` and ``popleft`` are atomic, and the writer thread does the rest. All other fields of a ``Timeline`` belong to
the writer after its start. Timelines are begun and ended by the control thread (on an order of rank 0), by rank 0's
caller, and by the thread that closes the session; ``Recorder``'s lock serializes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Any, Protocol, final

import msgspec

from farandole import events
from farandole.control.reentrant_event import ReentrantEvent
from farandole.errors import UsageError
from farandole.runtime.lanes.phase_events import LANE
from farandole.runtime.lanes.reentry import Reentry
from farandole.settings import Settings

FLUSH_S = 0.05
"""Interval of writes, the most that a crash may lose; a concurrent reader sees a collective within 0.1 s."""

_BY_NAME = {"submit": "submit", "negotiate": "NEGOTIATE_{kind}", "queue": "queue", "execute": "{kind}"}
"""Phases of a collective of the negotiated lane, and their names in Horovod's timeline, in the row of its name.

A name is in flight once at a time, so its phases never overlap. Horovod's ``ALLREDUCE`` includes the wait, too.
"""

_CYCLE = "CYCLE_START"
"""Horovod's name for the arrival of orders."""


def path_of(path: str, number: int) -> str:
    """Path of the timeline of generation ``number``; each has its own file: ``trace.json``, ``trace.2.json``."""
    root, extension = os.path.splitext(path)
    return path if number <= 1 else f"{root}.{number}{extension}"


def create(path: str) -> None:
    """Create the file, or replace it; only its owner can read it. Raises ``UsageError`` if that is impossible."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # a rank that still writes an older timeline keeps its file
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(
            f"the timeline cannot be written to {path!r} ({error.strerror}): give a file in a writable place"
        ) from error
    with os.fdopen(fd, "wb") as file:
        file.write(b"[\n")


@final
class Timeline:
    """Writer that appends the events of this process to the existing file ``path``, from now until ``close``.

    ``offset_s`` is added to this host's clock; ``mark_cycles`` also shows when orders to begin collectives arrived,
    from the controller or, in the peer lane, from all ranks together.
    """

    def __init__(self, path: str, rank: int, host: str, offset_s: float = 0.0, mark_cycles: bool = False) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._rank, self._offset_s, self._mark_cycles = rank, offset_s, mark_cycles
        self._lanes: dict[str, int] = {}
        self._events: deque[events.Event] = deque()
        self._closing = ReentrantEvent()
        self._lines: list[bytes] = []
        self._line(ph="M", name="process_name", args={"name": f"rank {rank} on {host}"})
        self._line(ph="M", name="process_sort_index", args={"sort_index": rank})
        self._cancel = events.subscribe(self._events.append)
        # A daemon: the interpreter joins other threads before ``atexit``, which may call ``close``.
        self._thread = threading.Thread(target=self._write, name="farandole-timeline", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the remaining events and stop. Idempotent."""
        self._cancel()  # before ``_closing``, so that the last flush includes all events
        self._closing.set()
        self._thread.join()  # the file is complete, and the descriptor closed, when this returns

    def _write(self) -> None:
        try:
            while not self._closing.wait(FLUSH_S):
                self._flush()
            self._flush()
        except OSError as error:
            self._cancel()
            events.logger.warning("rank %d: the timeline ends here: %s", self._rank, error)
        finally:
            os.close(self._fd)

    def _flush(self) -> None:
        while self._events:  # only this thread pops, so the deque is not empty at ``popleft``
            event = self._events.popleft()
            if isinstance(event, events.Phase):
                self._phase(event)
            else:
                self._line(ph="i", s="p", name=event.text, ts=self._microseconds(event.time_s), tid=self._tid("notes"))
        if self._lines:
            left = b"".join(self._lines)
            self._lines.clear()
            # One call, with O_APPEND: lines of other ranks cannot interleave. On a full disk it writes less, and the
            # next call raises.
            while left:
                left = left[os.write(self._fd, left) :]

    def _phase(self, phase: events.Phase) -> None:
        begin, end = self._microseconds(phase.begin_s), self._microseconds(phase.end_s)
        tid, lasted = self._tid(phase.lane), round(end - begin, 3)
        args = {"name": phase.name, "kind": phase.kind, "bytes": phase.nbytes}
        if phase.phase == "cycle":
            if self._mark_cycles:
                self._line(ph="i", s="t", name=_CYCLE, ts=begin, tid=tid)
        elif phase.lane == LANE and phase.phase in _BY_NAME:
            name, row = _BY_NAME[phase.phase].format(kind=phase.kind.upper()), self._tid(_row(phase.name))
            self._line(ph="X", cat=phase.lane, name=name, ts=begin, dur=lasted, tid=row, args=args)
        elif phase.phase == "negotiate":  # planned lanes share a row, and may negotiate at the same time
            same = {"cat": phase.lane, "id2": {"local": phase.name}, "name": phase.phase, "tid": tid}
            self._line(ph="b", ts=begin, args={"name": phase.name, "kind": phase.kind}, **same)
            self._line(ph="e", ts=end, **same)
        else:
            self._line(ph="X", cat=phase.lane, name=phase.phase, ts=begin, dur=lasted, tid=tid, args=args)

    def _tid(self, lane: str) -> int:
        """Number of a lane's row; the first call names the row."""
        tid = self._lanes.get(lane)
        if tid is None:
            tid = self._lanes[lane] = len(self._lanes)
            self._line(ph="M", name="thread_name", tid=tid, args={"name": lane})
        return tid

    def _line(self, **fields: Any) -> None:
        self._lines.append(msgspec.json.encode({"pid": self._rank, **fields}) + b",\n")

    def _microseconds(self, time_s: float) -> float:
        return round((time_s + self._offset_s) * 1e6, 3)


def _row(name: str) -> str:
    """Row of a collective; numbered collectives without a user's name share one."""
    before, unnamed, _ = name.partition(".noname.")
    return before + unnamed[:-1]


class OtherRanks(Protocol):
    """Interface of rank 0 to the other ranks, for timelines."""

    def set_timeline(self, path: str, mark_cycles: bool, timeout_s: float) -> bool:
        """Make all ranks begin, or stop if ``path`` is ""; False if some have not in time."""


@final
class Recorder:
    """Recorder of this rank's part of a session's timelines. ``offset_s`` is added to this host's clock."""

    def __init__(self, rank: int, host: str, offset_s: float, settings: Settings, reentry: Reentry) -> None:
        self.others: OtherRanks | None = None
        self._rank, self._host, self._offset_s = rank, host, offset_s
        self._settings, self._reentry = settings, reentry
        self._lock = threading.RLock()  # a signal handler may end the session while its thread is in here
        self._timeline: Timeline | None = None
        self._closed = False

    def record_all(self, path: str, mark_cycles: bool = False) -> None:
        """Write one timeline of all ranks to ``path``, or stop if it is ""; all ranks have followed on return.

        On other ranks than 0 the call does nothing.
        """
        if self._rank:
            return
        mark_cycles |= self._settings.timeline_mark_cycles
        limit_s = self._settings.stall_limit_s(self._settings.stall_warning_s)
        with self._reentry:
            if path:
                path = os.path.abspath(path)
                create(path)
            self.record(path, mark_cycles)
            if self.others is not None and not self.others.set_timeline(path, mark_cycles, limit_s):
                events.logger.warning(
                    "not every rank has %s its timeline within %g s: it will once it answers the controller again",
                    "begun" if path else "ended",
                    limit_s,
                )

    def record(self, path: str, mark_cycles: bool) -> None:
        """Write to ``path`` from now on, or stop if it is ""; on return the previous file is complete."""
        with self._lock:
            former, self._timeline = self._timeline, None  # first: a handler on top of ``join`` must not join as well
            if former is not None:
                former.close()
            if path and not self._closed:  # a signal handler on top of the lines above may have closed it
                try:
                    self._timeline = Timeline(path, self._rank, self._host, self._offset_s, mark_cycles)
                except OSError as error:
                    who = f"rank {self._rank} on {self._host}"
                    events.logger.warning("%s cannot write to the timeline %s: %s", who, path, error)
            if self._closed and self._timeline is not None:  # closed by a handler meanwhile
                self._timeline.close()

    def close(self) -> None:
        """Complete the timeline, and start no other one."""
        with self._lock:
            self._closed = True
            self.record("", False)
