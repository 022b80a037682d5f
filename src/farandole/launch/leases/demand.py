"""Orders to the policy of leases that follow the number of workers that a pool can use. Pure.

>>> demand, limits = Demand(), LeaseLimits(lease_workers=4, max_np=10, shrink_after_s=600.0)
>>> demand.order(5, 0.0, limits)
ScaleTo(np=8, why='the search can use 5 workers')
>>> demand.order(2, 60.0, limits), demand.due_s(limits)
(None, 660.0)
"""

from __future__ import annotations

import math
from typing import final

from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import ScaleTo
from farandole.launch.leases.policy_context import count


@final
class Demand:
    """Demand of one pool, in whole leases.

    More is ordered at once, and less after the demand was lower for ``shrink-after-s``, namely the most of that time: a
    trial that pauses is often followed by another one, for which a new lease would wait in the queue.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Order again at the next call: the policy no longer has the last order."""
        self._ordered = -1
        self._lower_since_s, self._most = math.inf, 0

    def order(self, workers: int, now_s: float, limits: LeaseLimits) -> ScaleTo | None:
        """The order that is due, if a pool can use so many ``workers``; ``None``: the last order stays."""
        size = limits.lease_workers
        most = limits.max_np // size if limits.max_np else math.inf
        wanted = int(min(math.ceil(workers / size), most)) * size
        if wanted < self._ordered:
            self._lower_since_s, self._most = min(self._lower_since_s, now_s), max(self._most, wanted)
            if now_s < self.due_s(limits):
                return None
        np = max(wanted, self._most)
        self._lower_since_s, self._most = (now_s, wanted) if wanted < np else (math.inf, 0)
        if np == self._ordered:
            return None
        self._ordered = np
        return ScaleTo(np, f"the search can use {count(workers)}")

    def due_s(self, limits: LeaseLimits) -> float:
        """Time at which ``order`` is due even if the demand stays; infinite if it is not lower than the last order."""
        return self._lower_since_s + limits.shrink_after_s
