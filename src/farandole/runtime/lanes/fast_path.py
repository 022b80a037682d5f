"""Fast path of graph calls: opened for a name after a call on the peer lane, closed when the next call uses the lane.

    fast = FastPath(core_fast_path)
    fast.attach(announcement, grant=7)     # the call is over: the graph's next one may meet the others in shared memory
    fast.detach(announcement.key)          # a call goes through Python, and so do those that begin before it is over

The native core does the rest (native/fast_path.hpp). A call that does not meet the other ranks there continues in
Python, on the peer lane, like the first call. So the runtime never sees a call that has met the others there.

Threads. The lane calls ``attach`` and ``detach`` with its lock, so that no name is open while a call of it is in flight
in the lane. Any thread, a signal handler too, calls ``stop``. A thread that subscribes to events closes every name
(``shortcuts``), because the fast path emits no events: hence ``attach`` checks again for subscribers at its end.
"""

from __future__ import annotations

from typing import final

from farandole import events
from farandole.collective import Kind, ReduceOp
from farandole.native import core
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.lanes.announcement import Announcement, Key

WATCH_S = 200e-6
"""Time that a call polls for the other ranks: about the cost of waking two threads, which it otherwise pays."""


@final
class FastPath:
    """Fast path of one session."""

    def __init__(self, native: core.FastPath) -> None:
        self._native = native
        self._names: set[str] = set()  # all names ever opened; it only grows, so that no state must be kept in step

    def met(self) -> int:
        """Number of calls completed on the fast path."""
        return self._native.met

    def pace(self) -> tuple[float, float]:
        """Time of the last call completed here, and the longest time between two since the previous ``pace()``."""
        return self._native.pace()

    def statistics(self) -> dict[str, int]:
        """Number of calls completed on the fast path, and of calls that left it for the peer lane."""
        return {"met": self._native.met, "left": self._native.left}

    def attach(self, announcement: Announcement, grant: int) -> None:
        """Open the fast path for calls like this completed one under this grant; does nothing if they cannot use it."""
        fast, calls, key = announcement.fast, announcement.calls, announcement.key
        if fast is None or announcement.kind is not Kind.ALLREDUCE or key[0] != GLOBAL or events.subscribers:
            return
        how, dtypes = calls[0].how, {call.array.dtype for call in calls}
        # After a refusal the name on the wire changes, and a call out of a graph does not know that.
        if how.op is ReduceOp.ADASUM or len(dtypes) > 1 or key != announcement.name:
            return
        if not self._names:
            events.shortcuts.append(self.detach_all)
        self._names.add(key[1])  # before it is open
        self._native.attach(
            fast.library, fast.spec, key[1], grant, int(calls[0].array.dtype), int(how.op), how.prescale,
            how.postscale, fast.inputs, fast.origin,
        )  # fmt: skip
        if events.subscribers:
            self._native.detach(key[1])

    def give_way(self, announcement: Announcement) -> None:
        """Close the name of a collective that begins in the lane; all names for a join, whose rank calls no graph."""
        if announcement.kind is Kind.JOIN:
            self.detach_all()
        else:
            self.detach(announcement.key)

    def detach(self, key: Key) -> None:
        """Close a name; returns when no call uses it any more."""
        if key[0] == GLOBAL and key[1] in self._names:
            self._native.detach(key[1])

    def detach_all(self) -> None:
        """Close all names."""
        for name in list(self._names):
            self._native.detach(name)

    def stop(self) -> None:
        """Admit no further call; never blocks."""
        self._native.stop()

    def close(self) -> None:
        """Close all names, once the lane has ended."""
        if self.detach_all in events.shortcuts:
            events.shortcuts.remove(self.detach_all)
        self._native.close()
