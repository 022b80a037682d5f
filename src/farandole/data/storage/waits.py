"""Accounting of a thread's time while it gets a sample: shared storage, a peer, a disk, or decoding.

with during("decode"):                             # the pool, around dataset[17]
    with during("shared storage", "/lustre/a.h5"): # the store, around each read; it does not count as decoding
        ...
mine().pop_times()                                 # {"shared storage": 0.021, "decode": 0.004}
"""

# Threads. Only its own thread changes a ``ThreadTimes``. Others only read the last element of ``open``, a list, which
# changes in single operations; a late read reports a wait that has just ended.

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import final

from farandole import events

LANE = "input"
"""Row of a timeline."""

PHASES = {"shared storage": "read", "disk": "read", "peer": "fetch", "staging": "stage", "decode": "decode"}
"""Categories, and their names in a timeline."""


@final
class ThreadTimes:
    """Seconds of one thread by category, without the seconds of nested categories."""

    __slots__ = ("clock", "cpu_s", "open", "spent")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.spent = clock, {}  # type: Callable[[], float], dict[str, float]
        self.cpu_s = 0.0
        """CPU time that other processes spent for this thread."""
        self.open: list[during] = []
        """Waits under way, the innermost last."""

    def pop_times(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        spent, self.spent = self.spent, {}
        return spent

    def add(self, spent: Mapping[str, float], cpu_s: float) -> None:
        """Add time that another process spent for this thread, while the thread waited."""
        self.cpu_s += cpu_s
        for category, seconds in spent.items():
            self.spent[category] = self.spent.get(category, 0.0) + seconds
        if self.open:
            self.open[-1].nested_s += sum(spent.values())

    def now(self) -> tuple[str, str]:
        """Category of the wait under way, and its object; empty if there is none. Any thread may call."""
        for wait in self.open[-1:]:
            return wait.category, wait.what
        return "", ""


@final
class _Local(threading.local):
    def __init__(self) -> None:
        self.times = ThreadTimes()


_local = _Local()


def mine() -> ThreadTimes:
    """The times of the calling thread."""
    return _local.times


@final
class during:  # noqa: N801 (reads as a statement)
    """Block whose time counts as ``category``; ``what`` is the file, or the part of it, that reports name.

    >>> with during("disk", "/tmp/a.npy", nbytes=5):
    ...     data = b"12345"
    """

    __slots__ = ("begin_s", "category", "nbytes", "nested_s", "times", "what")

    def __init__(self, category: str, what: str = "", nbytes: int = 0, times: ThreadTimes | None = None) -> None:
        self.category, self.what, self.nbytes = category, what, nbytes
        self.times, self.begin_s, self.nested_s = times or _local.times, 0.0, 0.0

    def __enter__(self) -> during:
        self.times.open.append(self)
        self.begin_s = self.times.clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        times, end_s = self.times, self.times.clock()
        lasted_s = end_s - self.begin_s
        times.open.pop()
        if times.open:
            times.open[-1].nested_s += lasted_s
        times.spent[self.category] = times.spent.get(self.category, 0.0) + lasted_s - self.nested_s
        if events.subscribers:
            phase = PHASES.get(self.category, self.category)
            events.emit(events.Phase(LANE, self.what, "input", phase, self.begin_s, end_s, self.nbytes))


def waited_for_storage(spent: Mapping[str, float]) -> float:
    """Seconds of ``spent`` but those for decoding."""
    return sum(seconds for category, seconds in spent.items() if category != "decode")


@final
class Meter:
    """Sums of seconds by category.

    >>> meter = Meter()
    >>> meter.add({"disk": 0.5, "decode": 2.0})
    >>> meter.largest(), meter.seconds["disk"]
    ('decode', 0.5)
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, spent: Mapping[str, float]) -> None:
        """Add ``spent``."""
        for category, seconds in spent.items():
            self.seconds[category] = self.seconds.get(category, 0.0) + seconds

    def largest(self) -> str:
        """Category with the most seconds; empty if nothing was added."""
        return max(self.seconds, key=lambda category: self.seconds[category], default="")
