"""The lane of a job of one process: no controller, no thread; everything is done at once, in the calling thread.

lane = LoneLane(perform, host="a")
lane.submit(ask, background=False).wait()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
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
from farandole.runtime.lanes.lane import Performer, interrupting
from farandole.runtime.lanes.reentry import Reentry


@final
@dataclass(slots=True)
class Done:
    """The handle of a collective that is over."""

    outcomes: list[CallResult]
    failure: Failure | None = None

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> list[CallResult]:
        """What came of it."""
        if self.failure is not None:
            raise self.failure.fresh()
        return self.outcomes


@final
class LoneLane:
    """Negotiates with itself, so that one process accepts and refuses what many would."""

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
        self._one_at_a_time = threading.Lock()
        self._ended: Failure | None = None

    def submit(self, announcement: Announcement, background: bool) -> Done:
        """See ``Lane``."""
        if self._reentry.here():
            raise interrupting(announcement)
        begin_s = time.monotonic() if events.subscribers else 0.0
        with self._reentry, self._one_at_a_time:
            if self._ended is not None:
                raise self._ended.fresh()
            self._negotiation.submit(RankSet.of([0]), announcement.entry(), now=0.0)
            [delivery] = self._negotiation.decide(now=0.0)
            order = delivery.order
            if order.error:
                return Done([], Failure.named(order.error_kind, order.error))
            if begin_s:
                phase_events.cycle(begin_s)
                phase_events.waited(order.names, announcement.kind, [(begin_s, 0.0)], begin_s)
            try:
                [outcomes] = self._perform(order, [announcement.calls])
            except Exception as error:
                return Done([], Failure.of(error))
            if begin_s:
                phase_events.executed(order.names, announcement.kind, begin_s)
            self.last = order
        return Done(outcomes)

    def refuse(self, announcement: Announcement) -> None:
        """See ``Lane``; there are no others."""

    def end(self, failure: Failure) -> None:
        """See ``Lane``."""
        self._ended = failure

    def close(self) -> None:
        """See ``Lane``."""
