"""Lane of a job of one process: no controller, no thread; every collective runs at once, in the calling thread.

    lane = SingleProcessLane(perform, "a", static_sets=[], dynamic_sets=True, reentry=Reentry())
    lane.submit(announcement, background=False).wait()

Threads. Any user thread submits, and executes its own collective before ``submit`` returns. ``_one_at_a_time`` guards
the negotiation, the engine and ``last``. It is a plain lock: ``reentry`` refuses a signal handler on top of the thread
that holds it, before the handler could wait for itself. ``end`` acquires no lock, because a handler that shuts down may
call it on top of a collective; the thread that ends the session writes ``_ended`` once, and later calls read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from farandole import events
from farandole.control.messages import Order
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.lanes import phase_events
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.call import CallResult
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.lane import PendingCollectives, Performer, interrupting
from farandole.runtime.lanes.reentry import Reentry


@final
@dataclass(slots=True)
class Done:
    """Handle of a completed collective."""

    outcomes: list[CallResult]
    failure: Failure | None = None

    def done(self) -> bool:
        """True: ``submit`` has executed it."""
        return True

    def when_done(self, observer: Callable[[], None]) -> None:
        """See ``Handle``."""
        observer()

    def wait(self) -> list[CallResult]:
        """Return the results, one per call, or raise the error that ended the collective."""
        if self.failure is not None:
            raise self.failure.fresh()
        return self.outcomes


@final
class SingleProcessLane:
    """Lane of one process; it runs the negotiation for one rank, so as to refuse the same calls as a larger job."""

    def __init__(
        self,
        perform: Performer,
        host: str,
        static_sets: Sequence[Sequence[int]],
        dynamic_sets: bool,
        reentry: Reentry,
    ) -> None:
        self.last: Order | None = None
        self.inside: Order | None = None
        self._perform, self._reentry = perform, reentry
        self._negotiation = Negotiation([host], static_sets, dynamic_sets=dynamic_sets)
        self._is_unsettled = False
        self._one_at_a_time = threading.Lock()
        self._ended: Failure | None = None

    def submit(self, announcement: Announcement, background: bool, progress_s: float = 0.0) -> Done:
        """See ``Lane``."""
        if self._reentry.here():
            raise interrupting(announcement)
        begin_s = time.monotonic() if events.subscribers else 0.0
        with self._reentry, self._one_at_a_time:  # in this order: a handler between the two must find ``here()`` true
            if self._ended is not None:  # checked with the lock: the session may have ended while this thread waited
                raise self._ended.fresh()
            order = self._agree(announcement)
            if order.error:
                return Done([], Failure.named(order.error_kind, order.error))
            if begin_s:
                phase_events.cycle(begin_s)
                phase_events.waited(order.names, announcement.kind, [(begin_s, 0.0)], begin_s)
            try:
                [outcomes] = self._perform(order, [announcement.calls])
            except Exception as error:  # not KeyboardInterrupt: no other rank waits, so the caller gets it at once
                return Done([], Failure.of(error))
            if begin_s:
                phase_events.executed(order.names, announcement.kind, begin_s)
            self.last = order
        return Done(outcomes)

    def _agree(self, announcement: Announcement) -> Order:
        """Get the order of the negotiation at once. Called with the lock."""
        # A signal handler may raise between any two lines: its leftovers must not be part of the next order.
        if self._is_unsettled:
            self._negotiation.reset()
        self._is_unsettled = True
        self._negotiation.submit(RankSet.of([0]), announcement.entry(), now=0.0)
        [delivery] = self._negotiation.decide(now=0.0)
        self._is_unsettled = False
        return delivery.order

    def refuse(self, announcement: Announcement) -> None:
        """See ``Lane``: there are no other ranks to tell."""

    def end(self, failure: Failure) -> None:
        """See ``Lane``; without the lock, see the module."""
        self._ended = failure

    def await_exit(self, timeout_s: float | None) -> bool:
        """See ``Lane``; a collective in another thread ends without help of other ranks, so this need not wait."""
        return True

    def waits(self) -> list[tuple[int, int, Announcement]]:
        """See ``Lane``; no thread waits."""
        return []

    def in_flight(self) -> PendingCollectives | None:
        """See ``Lane``; none is in flight."""
        return PendingCollectives([], {}, {})

    def close(self) -> None:
        """See ``Lane``: it has nothing to free."""
