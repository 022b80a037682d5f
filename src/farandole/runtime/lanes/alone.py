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
from farandole.runtime.lanes import phases
from farandole.runtime.lanes.ask import Ask
from farandole.runtime.lanes.call import Outcome
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.lane import Performer, interrupting
from farandole.runtime.lanes.presence import Presence


@final
@dataclass(slots=True)
class Done:
    """The handle of a collective that is over."""

    outcomes: list[Outcome]
    failure: Failure | None = None

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> list[Outcome]:
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
        presence: Presence,
    ) -> None:
        self.last: Order | None = None
        self.inside: Order | None = None
        self._perform, self._presence = perform, presence
        self._negotiation = Negotiation([host], static_sets, dynamic_sets=dynamic_sets)
        self._one_at_a_time = threading.Lock()
        self._ended: Failure | None = None

    def submit(self, ask: Ask, background: bool) -> Done:
        """See ``Lane``."""
        if self._presence.here():
            raise interrupting(ask)
        begin_s = time.monotonic() if events.subscribers else 0.0
        with self._presence, self._one_at_a_time:
            if self._ended is not None:
                raise self._ended.fresh()
            self._negotiation.submit(RankSet.of([0]), ask.entry(), now=0.0)
            [delivery] = self._negotiation.decide(now=0.0)
            order = delivery.order
            if order.error:
                return Done([], Failure.named(order.error_kind, order.error))
            if begin_s:
                phases.cycle(begin_s)
                phases.waited(order.names, ask.kind, [(begin_s, 0.0)], begin_s)
            try:
                [outcomes] = self._perform(order, [ask.calls])
            except Exception as error:
                return Done([], Failure.of(error))
            if begin_s:
                phases.executed(order.names, ask.kind, begin_s)
            self.last = order
        return Done(outcomes)

    def refuse(self, ask: Ask) -> None:
        """See ``Lane``; there are no others."""

    def end(self, failure: Failure) -> None:
        """See ``Lane``."""
        self._ended = failure

    def close(self) -> None:
        """See ``Lane``."""
