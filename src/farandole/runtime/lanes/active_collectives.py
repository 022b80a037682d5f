"""Active collectives of this process (planned, negotiated, or of the peer lane) for stall reports, and their rate.

    active = ActiveCollectives()
    active.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")      # the calling thread begins this collective
    active.now()                                                    # "optimizer.0: bucket 1"
    active.older_than(60.0, generation=1)                           # the stall reports for the controller
    active.exit(0, "optimizer.0")

Threads. Every thread that is in a collective writes; the control thread reads now and then, and so does a thread whose
engine has failed. There is no lock: writes happen once per collective, signal handlers write on top of the thread that
they have interrupted, and single operations on a ``dict`` are atomic under the GIL. That suffices because each key has
one writer at a time (the thread in the key; for the peer lane, the holder of its lock), and a value is a tuple that is
replaced and never changed, so that a reader never sees half a value. Readers iterate over a copy. ``list(d.items())``
is no atomic copy: it allocates a tuple for each item, any of which may start the garbage collector, and a finalizer
there lets other threads run. ``d.copy()`` and ``list(d.values())`` allocate no collected objects.
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
"""Start time, process set, lane, sequence, description, token of a wait for all members (0: no such wait), and true if
this rank has joined and only takes part for the others, without waiting for them."""


@final
class Pace:
    """Rate of this process's collectives: their number, and the longest time between two, which stall checks allow for.

    Any thread calls ``beat``, without a lock. If two threads overwrite each other, a count is lost, or a time is too
    short: the count is only compared with an older one, to see that the process makes progress.
    """

    __slots__ = ("_last_s", "_since_s", "begun", "elsewhere", "met", "step_s")

    def __init__(self) -> None:
        self.begun = 0
        """Number of collectives begun."""
        self.step_s = 0.0
        """The longest time between two collectives in the last ``LATELY_S``, in seconds."""
        self.met: Callable[[], int] = int
        """Number of collectives on the fast path, which ``begun`` does not count."""
        self.elsewhere: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        """Time of the last collective on the fast path, and the longest time between two since the previous call."""
        self._last_s = self._since_s = time.monotonic()

    def count(self) -> int:
        """Number of collectives begun here, or completed on the fast path."""
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
    """Collectives that a process is inside of: one per thread, and the rounds that wait in the peer lane.

    A thread that a signal handler has interrupted may be inside of two collectives, but never of two of one lane.
    """

    __slots__ = ("_agreed", "_reached", "_tokens", "inside", "pace")

    def __init__(self) -> None:
        self.pace = Pace()
        self._agreed: dict[int, int] = {}
        self.inside: dict[tuple[int, int, str] | str, _Active] = {}
        """Active collectives: by thread, process set and lane, or by the lane name of a round of the peer lane."""
        self._reached: dict[tuple[int, str], int] = {}
        self._tokens = itertools.count(1)

    def enter(
        self, process_set: int, lane: str, sequence: int, what: str, needs_all: bool = False, joined: bool = False
    ) -> None:
        """Record that the calling thread begins a planned collective, the ``sequence``-th of ``lane``.

        ``needs_all``: it ends on no member before all members have begun it. ``joined``: it is no stall, however long
        it lasts.
        """
        me = threading.get_ident()
        if sequence > self._reached.get((process_set, lane), 0):  # a recreated lane starts at 1 again
            self._reached[process_set, lane] = sequence
        token = next(self._tokens) if needs_all else 0
        self.inside[me, process_set, lane] = self.pace.beat(), process_set, lane, sequence, what, token, joined

    def enter_agreed(self, process_set: int, what: str) -> None:
        """Record that the calling thread begins the next negotiated collective of a process set."""
        # Read, then written, without a lock: only the thread that executes orders calls this, one at a time.
        sequence = self._agreed[process_set] = self._agreed.get(process_set, 0) + 1
        me = threading.get_ident()
        self.inside[me, process_set, AGREED] = time.monotonic(), process_set, AGREED, sequence, what, 0, False

    def enter_direct(self, lane: str, sequence: int, what: str) -> None:
        """Record the ``sequence``-th round of a name in the peer lane, which waits for all ranks."""
        # No thread in the key: one thread gives this rank's part, and the leader, maybe another one, ends the round.
        self.inside[lane] = time.monotonic(), GLOBAL, lane, sequence, what, 0, False

    def exit_direct(self, lane: str) -> None:
        """Record the end of a round of the peer lane: all ranks have contributed, or the controller takes over."""
        self.inside.pop(lane, None)

    def reach(self, process_set: int, lane: str, sequence: int) -> None:
        """Record that this rank has reached ``sequence`` in a lane that runs no collectives (cells of a notebook)."""
        self._reached[process_set, lane] = sequence

    def forget(self, process_set: int, lane: str) -> None:
        """Forget a lane in which no rank waits any more."""
        self._reached.pop((process_set, lane), None)

    def exit(self, process_set: int, lane: str = AGREED) -> None:
        """Record the end of the calling thread's collective of this lane, successful or not."""
        self.inside.pop((threading.get_ident(), process_set, lane), None)

    def now(self) -> str:
        """Describe the active collectives, for reports; "" for none."""
        # Here and below, a copy made in one step (see the module): other threads add and remove entries meanwhile.
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
        """Threads that wait for all members in a planned collective, each with its wait."""
        return [
            (key[0], ThreadWait(token, process_set, what, lane=lane, sequence=sequence))
            for key, (_, process_set, lane, sequence, what, token, _) in self.inside.copy().items()
            if token and not isinstance(key, str)
        ]

    def count_planned(self) -> int:
        """Number of planned collectives that threads are inside of, with or without a wait for all members."""
        return sum(key[2] != AGREED for key in list(self.inside) if not isinstance(key, str))

    def reached(self) -> list[tuple[int, str, int]]:
        """Planned lanes of this process, by process set and label, and the latest collective of each."""
        return [(*lane, sequence) for lane, sequence in self._reached.copy().items()]
