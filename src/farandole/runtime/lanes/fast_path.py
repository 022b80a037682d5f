"""Fast path of graph calls: opened for a name when a call has gone from rank to rank, closed when the next one does.

    fast = FastPath(core_fast_path)
    fast.attach(announcement, grant=7)     # the call is over: the next one of the graph may meet the others in memory
    fast.detach(announcement.key)          # this one goes through Python, and so does the next one after it has begun

The native core has the rest (native/fast_path.hpp). A call that does not meet the others there comes to Python, into
the peer lane, as the first one did. So the runtime knows of no call that has met: it was over before it was noticed.

Threads. The lane calls ``attach`` and ``detach`` with its lock, so that no name is open while a call of it is in flight
in the lane. Any thread, a signal handler too, calls ``stop``. Who subscribes to events closes every name, from another
thread (``shortcuts``), as nobody would tell of what goes on here: hence ``attach`` looks for subscribers afterwards,
and a name is in ``_open`` while it may be open, and sometimes when it is not.
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
        self._open: set[Key] = set()
        events.shortcuts.append(self._detach_all)

    def last_s(self) -> float:
        """Time of the last call here (``time.monotonic()``); 0 for none."""
        return self._native.last_s

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
        self._native.attach(
            fast.library, fast.spec, key[1], grant, int(calls[0].array.dtype), int(how.op), how.prescale,
            how.postscale, fast.inputs, fast.origin,
        )  # fmt: skip
        self._open.add(key)
        if events.subscribers:
            self.detach(key)

    def detach(self, key: Key) -> None:
        """Close the way of a name; returns when no call is on it."""
        if key in self._open:
            self._open.discard(key)  # first: a name that is opened meanwhile must be known to be open
            self._native.detach(key[1])

    def _detach_all(self) -> None:
        for key in list(self._open):
            self.detach(key)

    def stop(self) -> None:
        """Let no further call in; waits for nobody."""
        self._native.stop()

    def close(self) -> None:
        """Close all ways, once the lane has ended."""
        if self._detach_all in events.shortcuts:
            events.shortcuts.remove(self._detach_all)
        self._native.close()
