"""The lane of a job of one process: no controller, no thread; everything is done at once, in the calling thread.

    lane = LoneLane(perform, "a", static_sets=[], dynamic_sets=True, reentry=Reentry())
    lane.submit(announcement, background=False).wait()

Threads. Any user thread submits, and executes its own collective before ``submit`` returns. ``_one_at_a_time`` guards
the negotiation, the engine and ``last``. It is a plain lock: a signal handler on top of a thread that has it is refused
by ``reentry`` before it could wait for itself. ``end`` takes no lock, as a handler that shuts down may call it on top
of a collective; ``_ended`` is written once by whoever ends the session, and read by those that come afterwards.
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
    """The handle of a collective that is over."""

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
    """The lane of one process; it negotiates with itself, so as to accept and refuse what the ranks of a job would."""

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
            if self._ended is not None:  # looked at with the lock: the session may have ended while this thread waited
                raise self._ended.fresh()
            order = self._agree(announcement)
            if order.error:
                return Done([], Failure.named(order.error_kind, order.error))
            if begin_s:
                phase_events.cycle(begin_s)
                phase_events.waited(order.names, announcement.kind, [(begin_s, 0.0)], begin_s)
            try:
                [outcomes] = self._perform(order, [announcement.calls])
            except Exception as error:  # not KeyboardInterrupt: nobody else waits, so it is the caller's at once
                return Done([], Failure.of(error))
            if begin_s:
                phase_events.executed(order.names, announcement.kind, begin_s)
            self.last = order
        return Done(outcomes)

    def _agree(self, announcement: Announcement) -> Order:
        """Have the negotiation order it at once. With the lock."""
        # A signal handler may raise between any two lines: what it leaves behind must not come with the next order.
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
        """See ``Lane``; a collective in another thread needs nobody to come to its end, so it is not waited for."""
        return True

    def waits(self) -> list[tuple[int, int, Announcement]]:
        """See ``Lane``; nobody waits."""
        return []

    def in_flight(self) -> PendingCollectives | None:
        """See ``Lane``; nothing is."""
        return PendingCollectives([], {}, {})

    def close(self) -> None:
        """See ``Lane``: it has nothing to free."""
