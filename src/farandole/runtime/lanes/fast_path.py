"""Fast path of graph calls: opened for a name when a call has gone from rank to rank, closed when the next one does.

    fast = FastPath(core_fast_path)
    fast.attach(announcement, grant=7)     # the call is over: the next one of the graph may meet the others in memory
    fast.detach(announcement.key)          # one goes through Python, and so do those that begin before it is over

The native core has the rest (native/fast_path.hpp). A call that does not meet the others there comes to Python, into
the peer lane, as the first one did. So the runtime knows of no call that has met: it was over before it was noticed.

Threads. The lane calls ``attach`` and ``detach`` with its lock, so that no name is open while a call of it is in flight
in the lane. Any thread, a signal handler too, calls ``stop``. Who subscribes to events closes every name, from another
thread (``shortcuts``), as nobody would tell of what goes on here: hence ``attach`` looks for subscribers afterwards.
"""

from __future__ import annotations

from typing import final

from farandole import events
from farandole.collective import Kind, ReduceOp
from farandole.native import core
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.lanes.announcement import Announcement, Key

WATCH_S = 200e-6
"""Time that a call watches for the others: about what it costs to wake two threads, which it would else have to."""


@final
class FastPath:
    """Fast path of one session."""

    def __init__(self, native: core.FastPath) -> None:
        self._native = native
        self._names: set[str] = set()  # that were ever open; it only grows, so that nothing has to be kept in step

    def met(self) -> int:
        """Number of calls that have met."""
        return self._native.met

    def pace(self) -> tuple[float, float]:
        """Time of the last call that has met, and the longest time between two since this was asked."""
        return self._native.pace()

    def statistics(self) -> dict[str, int]:
        """Number of calls that have met, and of those that have left."""
        return {"met": self._native.met, "left": self._native.left}

    def attach(self, announcement: Announcement, grant: int) -> None:
        """Open the way for calls like this one, which is over and had this grant; nothing if they cannot meet."""
        fast, calls, key = announcement.fast, announcement.calls, announcement.key
        if fast is None or announcement.kind is not Kind.ALLREDUCE or key[0] != GLOBAL or events.subscribers:
            return
        how, dtypes = calls[0].how, {call.array.dtype for call in calls}
        # After a refusal ranks count the calls of a name anew, and a call out of a graph cannot know.
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
        """Close the way of what begins in the lane; that of all names for a join, whose rank takes part in nothing."""
        if announcement.kind is Kind.JOIN:
            self.detach_all()
        else:
            self.detach(announcement.key)

    def detach(self, key: Key) -> None:
        """Close the way of a name; returns when no call is on it."""
        if key[0] == GLOBAL and key[1] in self._names:
            self._native.detach(key[1])

    def detach_all(self) -> None:
        """Close the ways of all names."""
        for name in list(self._names):
            self._native.detach(name)

    def stop(self) -> None:
        """Let no further call in; waits for nobody."""
        self._native.stop()

    def close(self) -> None:
        """Close all ways, once the lane has ended."""
        if self.detach_all in events.shortcuts:
            events.shortcuts.remove(self.detach_all)
        self._native.close()
