"""The collectives that this process is inside of, planned, agreed on or direct; and how often it comes to one.

ongoing = Ongoing()
ongoing.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")     # the calling thread begins it
ongoing.now()                                                   # "optimizer.0: bucket 1"
ongoing.older_than(60.0, generation=1)                          # what the controller is to be told
ongoing.leave(0, "optimizer.0")
"""

from __future__ import annotations

import threading
import time
from typing import final

from farandole.control.messages import Blocked
from farandole.runtime.coordination.blocked_reports import AGREED
from farandole.runtime.coordination.process_groups import GLOBAL

LATELY_S = 60.0
"""How long the longest step counts, unless a longer one comes."""


@final
class Pace:
    """How far apart this process's collectives are: who waits for it need not worry for so long."""

    __slots__ = ("_last_s", "_since_s", "begun", "step_s")

    def __init__(self) -> None:
        self.begun = 0
        """How many there have been."""
        self.step_s = 0.0
        """The longest time between two of them, lately."""
        self._last_s = self._since_s = time.monotonic()

    def beat(self) -> float:
        """A collective begins, now."""
        now = time.monotonic()
        self.begun += 1
        step_s, self._last_s = now - self._last_s, now
        if step_s > self.step_s or now - self._since_s > LATELY_S:
            self.step_s, self._since_s = step_s, now
        return now


@final
class ActiveCollectives:
    """The collectives that a process is inside of: those of its threads, and those that wait in the direct lane.

    A thread is inside of one, and of another one where a signal handler has interrupted it: never of two of one lane.
    Written without a lock, once per collective.
    """

    __slots__ = ("_agreed", "_inside", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self._agreed: dict[int, int] = {}
        self._inside: dict[tuple[int, int, str] | str, tuple[float, int, str, int, str]] = {}

    def enter(self, process_set: int, lane: str, sequence: int, what: str) -> None:
        """The calling thread begins a planned collective, the ``sequence``-th of ``lane``."""
        me = threading.get_ident()
        self._inside[me, process_set, lane] = self.pace.beat(), process_set, lane, sequence, what

    def enter_agreed(self, process_set: int, what: str) -> None:
        """The calling thread begins the next collective that all members of a process set have agreed on."""
        sequence = self._agreed[process_set] = self._agreed.get(process_set, 0) + 1
        me = threading.get_ident()
        self._inside[me, process_set, AGREED] = time.monotonic(), process_set, AGREED, sequence, what

    def enter_direct(self, lane: str, sequence: int, what: str) -> None:
        """This process waits for what all others contribute, whatever its threads do; for the ``sequence``-th time."""
        self._inside[lane] = time.monotonic(), GLOBAL, lane, sequence, what

    def leave_direct(self, lane: str) -> None:
        """All have contributed, or the controller is asked."""
        self._inside.pop(lane, None)

    def is_in(self, process_set: int, lane: str) -> bool:
        """True if the calling thread is inside of a collective of this lane."""
        return (threading.get_ident(), process_set, lane) in self._inside

    def leave(self, process_set: int, lane: str = AGREED) -> None:
        """The calling thread's collective of this lane has ended, however it did."""
        self._inside.pop((threading.get_ident(), process_set, lane), None)

    def now(self) -> str:
        """What they are inside of; "" for nothing."""
        return "; ".join(what for *_, what in list(self._inside.values()))

    def older_than(self, seconds: float, generation: int) -> list[Blocked]:
        """What to report."""
        now = time.monotonic()
        return [
            Blocked(generation, process_set, lane, sequence, what, now - since, self.pace.step_s)
            for since, process_set, lane, sequence, what in list(self._inside.values())
            if now - since >= seconds
        ]
