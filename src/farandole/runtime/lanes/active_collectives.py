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
a value is a tuple that is replaced and never changed, so that a reader never sees half of one. Readers go through a
copy. ``list(d.items())`` is none: it makes a tuple for each item, any of which may set off the garbage collector, and
a finalizer there lets other threads run. ``d.copy()`` and ``list(d.values())`` make nothing that is collected.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import TypeAlias, final

from farandole.control.messages import Blocked, ThreadWait
from farandole.runtime.coordination.blocked_reports import AGREED
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.stall import LATELY_S

_Active: TypeAlias = tuple[float, int, str, int, str, int, bool]
"""Since when, process set, lane, sequence, description, the token of a wait for all members (0: it is none), and true
if this rank only keeps the others company, and does not wait for them: they come if they still need it."""


@final
class Pace:
    """Pace of this process: the number of its collectives, and the longest time between two, for which stalls may wait.

    Any thread beats, without a lock. What two threads overwrite of each other costs one count, or one time too short:
    the count is only compared with an older one, to see that the process does something.
    """

    __slots__ = ("_last_s", "_since_s", "begun", "elsewhere", "met", "step_s")

    def __init__(self) -> None:
        self.begun = 0
        """Number of collectives begun."""
        self.step_s = 0.0
        """The longest time between two collectives in the last ``LATELY_S``, in seconds."""
        self.met: Callable[[], int] = int
        """Number of collectives that took the fast path, and were not begun here."""
        self.elsewhere: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        """Time of the last of these, and the longest time between two since ``beat`` has asked for it."""
        self._last_s = self._since_s = time.monotonic()

    def count(self) -> int:
        """Number of collectives begun, or over on the fast path."""
        return self.begun + self.met()

    def beat(self) -> float:
        """Count a collective that begins now; returns the time."""
        now = time.monotonic()
        self.begun += 1  # several threads: see the class
        last_s, longest_s = self.elsewhere()
        step_s, self._last_s = max(now - max(self._last_s, last_s), longest_s, 0.0), now
        if step_s > self.step_s or now - self._since_s > LATELY_S:
            self.step_s, self._since_s = step_s, now
        return now


@final
class ActiveCollectives:
    """The collectives that a process is inside of: those of its threads, and those that wait in the peer lane.

    A thread is inside of one, and of another one where a signal handler has interrupted it: never of two of one lane.
    """

    __slots__ = ("_agreed", "_reached", "_tokens", "inside", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self._agreed: dict[int, int] = {}
        self.inside: dict[tuple[int, int, str] | str, _Active] = {}
        """Those that are active: by thread, process set and lane, or by the name of a round of the peer lane."""
        self._reached: dict[tuple[int, str], int] = {}
        self._tokens = itertools.count(1)

    def enter(
        self, process_set: int, lane: str, sequence: int, what: str, needs_all: bool = False, joined: bool = False
    ) -> None:
        """The calling thread begins a planned collective, the ``sequence``-th of ``lane``.

        One that ``needs_all`` cannot end on any member before each of them has come to it. One that has ``joined`` is
        no stall, however long it lasts.
        """
        me = threading.get_ident()
        if sequence > self._reached.get((process_set, lane), 0):  # a lane that is made anew begins again
            self._reached[process_set, lane] = sequence
        token = next(self._tokens) if needs_all else 0
        self.inside[me, process_set, lane] = self.pace.beat(), process_set, lane, sequence, what, token, joined

    def enter_agreed(self, process_set: int, what: str) -> None:
        """The calling thread begins the next collective that all members of a process set have agreed on."""
        # Read and written apart, without a lock: only the thread that executes orders comes here, one at a time.
        sequence = self._agreed[process_set] = self._agreed.get(process_set, 0) + 1
        me = threading.get_ident()
        self.inside[me, process_set, AGREED] = time.monotonic(), process_set, AGREED, sequence, what, 0, False

    def enter_direct(self, lane: str, sequence: int, what: str) -> None:
        """Begin the ``sequence``-th round of a name in the peer lane, which waits for all ranks."""
        # No thread in the key: one gives this rank's part, and the leader, perhaps another thread, ends the round.
        self.inside[lane] = time.monotonic(), GLOBAL, lane, sequence, what, 0, False

    def leave_direct(self, lane: str) -> None:
        """End a round of the peer lane: all have contributed, or it goes to the controller."""
        self.inside.pop(lane, None)

    def reach(self, process_set: int, lane: str, sequence: int) -> None:
        """Note that this rank has come to the ``sequence``-th collective of a lane, which has none of its own."""
        self._reached[process_set, lane] = sequence

    def forget(self, process_set: int, lane: str) -> None:
        """Forget a lane that no rank waits in any more."""
        self._reached.pop((process_set, lane), None)

    def leave(self, process_set: int, lane: str = AGREED) -> None:
        """The calling thread's collective of this lane has ended, however it did."""
        self.inside.pop((threading.get_ident(), process_set, lane), None)

    def now(self) -> str:
        """Describe the active collectives, for reports; "" for none."""
        # Here and below, a copy made in one step (see the module): other threads enter and leave meanwhile.
        return "; ".join(what for *_, what, _, _ in list(self.inside.values()))

    def older_than(self, seconds: float, generation: int) -> list[Blocked]:
        """Stall reports of the collectives that have lasted for ``seconds`` or more."""
        now = time.monotonic()
        return [
            Blocked(generation, process_set, lane, sequence, what, now - since, self.pace.step_s)
            for since, process_set, lane, sequence, what, _, joined in list(self.inside.values())
            if now - since >= seconds and not joined
        ]

    def waits(self) -> list[tuple[int, ThreadWait]]:
        """Threads that wait for all members of a planned collective, each with its wait."""
        return [
            (key[0], ThreadWait(token, process_set, what, lane=lane, sequence=sequence))
            for key, (_, process_set, lane, sequence, what, token, _) in self.inside.copy().items()
            if token and not isinstance(key, str)
        ]

    def count_planned(self) -> int:
        """Number of planned collectives that threads are inside of, whether they wait for all members or not."""
        return sum(key[2] != AGREED for key in list(self.inside) if not isinstance(key, str))

    def reached(self) -> list[tuple[int, str, int]]:
        """Planned lanes of this process, by process set and label, and the latest collective of each."""
        return [(*lane, sequence) for lane, sequence in self._reached.copy().items()]
