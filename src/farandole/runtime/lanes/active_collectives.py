"""Active collectives of this process (planned, agreed on, or of the peer lane), for stall reports; and its pace.

    active = ActiveCollectives()
    active.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")      # the calling thread begins it
    active.now()                                                    # "optimizer.0: bucket 1"
    active.older_than(60.0, generation=1)                           # the stall reports for the controller
    active.leave(0, "optimizer.0")

Threads. Every thread that is in a collective writes; the control thread reads now and then, and so does a thread whose
engine has failed. There is no lock: writing happens once per collective, signal handlers write on top of the
thread they have interrupted, and single operations on a ``dict`` are atomic under the interpreter's lock. What makes
that enough: each key has one writer at a time (the thread in the key; for the peer lane, the holder of its lock), and
a value is a tuple that is replaced and never changed, so that a reader never sees half of one.
"""

from __future__ import annotations

import threading
import time
from typing import final

from farandole.control.messages import Blocked
from farandole.runtime.coordination.blocked_reports import AGREED
from farandole.runtime.coordination.process_groups import GLOBAL

LATELY_S = 60.0
"""The time for which the longest step counts, unless a longer one comes."""


@final
class Pace:
    """Pace of this process: the number of its collectives, and the longest time between two, for which stalls may wait.

    Any thread beats, without a lock. What two threads overwrite of each other costs one count, or one time too short:
    the count is only compared with an older one, to see that the process does something.
    """

    __slots__ = ("_last_s", "_since_s", "begun", "step_s")

    def __init__(self) -> None:
        self.begun = 0
        """Number of collectives begun."""
        self.step_s = 0.0
        """The longest time between two collectives in the last ``LATELY_S``, in seconds."""
        self._last_s = self._since_s = time.monotonic()

    def beat(self) -> float:
        """Count a collective that begins now; returns the time."""
        now = time.monotonic()
        self.begun += 1  # several threads: see the class
        step_s, self._last_s = now - self._last_s, now
        if step_s > self.step_s or now - self._since_s > LATELY_S:
            self.step_s, self._since_s = step_s, now
        return now


@final
class ActiveCollectives:
    """The collectives that a process is inside of: those of its threads, and those that wait in the peer lane.

    A thread is inside of one, and of another one where a signal handler has interrupted it: never of two of one lane.
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
        # Read and written apart, without a lock: only the thread that executes orders comes here, one at a time.
        sequence = self._agreed[process_set] = self._agreed.get(process_set, 0) + 1
        me = threading.get_ident()
        self._inside[me, process_set, AGREED] = time.monotonic(), process_set, AGREED, sequence, what

    def enter_direct(self, lane: str, sequence: int, what: str) -> None:
        """Begin the ``sequence``-th round of a name in the peer lane, which waits for all ranks."""
        # No thread in the key: one gives this rank's part, and the leader, perhaps another thread, ends the round.
        self._inside[lane] = time.monotonic(), GLOBAL, lane, sequence, what

    def leave_direct(self, lane: str) -> None:
        """End a round of the peer lane: all have contributed, or it goes to the controller."""
        self._inside.pop(lane, None)

    def is_in(self, process_set: int, lane: str) -> bool:
        """True if the calling thread is inside of a collective of this lane."""
        return (threading.get_ident(), process_set, lane) in self._inside

    def leave(self, process_set: int, lane: str = AGREED) -> None:
        """The calling thread's collective of this lane has ended, however it did."""
        self._inside.pop((threading.get_ident(), process_set, lane), None)

    def now(self) -> str:
        """Describe the active collectives, for reports; "" for none."""
        # Here and below, a copy made in one step: other threads enter and leave while this one goes through it.
        return "; ".join(what for *_, what in list(self._inside.values()))

    def older_than(self, seconds: float, generation: int) -> list[Blocked]:
        """Stall reports of the collectives that have lasted for ``seconds`` or more."""
        now = time.monotonic()
        return [
            Blocked(generation, process_set, lane, sequence, what, now - since, self.pace.step_s)
            for since, process_set, lane, sequence, what in list(self._inside.values())
            if now - since >= seconds
        ]
