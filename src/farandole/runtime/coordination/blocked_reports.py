"""Reports of ranks that have been inside of a collective for long; without any I/O.

    reports = BlockedReports(groups, renewal_s=31.0)
    reports.add(0, Blocked(1, 0, "optimizer.0", 7, "optimizer.0: bucket 1", seconds=30.0), now)
    list(reports.waiting(now))                 # which ranks are inside, and which members have not come to it

Of collectives in the planned lane and the peer lane the controller hears in no other way: they need none of its orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, final

from farandole.control.messages import Blocked
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.stall import Waiting

AGREED = "agreed"
"""Name, in these reports, of the lane of collectives that ranks have agreed on."""


@final
class _Said(NamedTuple):
    """Latest report of one rank on one lane of one process set."""

    sequence: int
    what: str
    since_s: float
    heard_s: float
    step_s: float


@final
class BlockedReports:
    """Reports of one generation: one per rank, set and lane, forgotten if not renewed within ``renewal_s``."""

    def __init__(self, groups: ProcessGroups, renewal_s: float) -> None:
        self._groups, self._renewal_s = groups, renewal_s
        self._said: dict[tuple[int, int, str], _Said] = {}

    def add(self, rank: int, blocked: Blocked, now: float) -> bool:
        """Keep the report of ``rank``; False if it is impossible. Ranks renew it while it lasts."""
        members = self._groups.get(blocked.process_set)
        numbers = (blocked.seconds, blocked.step_s)
        if members is None or rank not in members or not all(0 <= number < math.inf for number in numbers):
            return False
        # A duration, not a moment, travels: the clocks of two hosts have nothing in common.
        self._said[rank, blocked.process_set, blocked.lane] = _Said(
            blocked.sequence, blocked.what, now - blocked.seconds, now, blocked.step_s
        )
        return True

    def waiting(self, now: float) -> Iterator[Waiting]:
        """Collectives that ranks are inside of, as far as they said so lately.

        One that was agreed on may move any number of bytes: while all are inside, its engine's own limit holds.
        """
        self._said = {key: said for key, said in self._said.items() if now - said.heard_s <= self._renewal_s}
        together: dict[tuple[int, str, int], dict[int, _Said]] = {}
        for (rank, process_set, lane), said in self._said.items():
            together.setdefault((process_set, lane, said.sequence), {})[rank] = said
        for key, ranks in together.items():
            missing = tuple(rank for rank in self._groups.get(key[0]) or () if rank not in ranks)
            if key[1] == AGREED and not missing:
                continue
            yield Waiting(
                ("blocked", *key),
                next(iter(ranks.values())).what,
                min(said.since_s for said in ranks.values()),
                tuple(sorted(ranks)),
                missing,
                self._renewal_s,
                max(said.step_s for said in ranks.values()),
            )
