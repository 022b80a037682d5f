"""Reports of ranks that have been inside of a collective for long; without any I/O.

    reports = BlockedReports(groups, renewal_s=31.0)
    reports.add(0, Blocked(1, 0, "optimizer.0", 7, "optimizer.0: bucket 1", seconds=30.0), now)
    list(reports.waiting(now))                 # the ranks inside, and the members that are missing

The controller knows of collectives in the planned and peer lanes only by these reports: they need no orders from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, final

from farandole.control.messages import Blocked
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.stall import Waiting

AGREED = "agreed"
"""Name of the negotiated lane in these reports."""

PAIRING = "pairing"
"""Name of the lane of the rounds in which ranks match the objects that they create, such as optimizers."""


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
    """Reports of one generation: one per rank, set and lane, forgotten if not renewed within ``renewal_s``.

    ``patience_s``: how long ranks in a pairing round wait for ranks that wait for them elsewhere; 0: forever.
    """

    def __init__(self, groups: ProcessGroups, renewal_s: float, patience_s: float = 0.0) -> None:
        self._groups, self._renewal_s, self._patience_s = groups, renewal_s, patience_s
        self._said: dict[tuple[int, int, str], _Said] = {}

    def add(self, rank: int, blocked: Blocked, now: float) -> bool:
        """Store the report of ``rank``; False if it is invalid. Ranks renew it while they are blocked."""
        members = self._groups.get(blocked.process_set)
        numbers = (blocked.seconds, blocked.step_s)
        if members is None or rank not in members or not all(0 <= number < math.inf for number in numbers):
            return False
        # The report has a duration and no time: the clocks of two hosts are unrelated.
        self._said[rank, blocked.process_set, blocked.lane] = _Said(
            blocked.sequence, blocked.what, now - blocked.seconds, now, blocked.step_s
        )
        return True

    def crossed(self, now: float) -> dict[int, str]:
        """Ranks that wait for each other, and where: some in a pairing round, all others in lanes that need the former.

        In a script with several threads another thread may still take part: hence the same patience as for a pairing.
        """
        if not self._patience_s:
            return {}
        long = {
            key: said
            for key, said in self._said.items()
            if now - said.heard_s <= self._renewal_s and now - said.since_s >= self._patience_s
        }
        for (_, number, lane), pairs in long.items():
            if lane == PAIRING:
                round_ = (number, lane, pairs.sequence)
                here = {rank: said.what for (rank, *at), said in long.items() if (*at, said.sequence) == round_}
                others = {r: self._elsewhere(r, here, long) for r in self._groups.get(number) or () if r not in here}
                if others and all(others.values()):
                    return here | others
        return {}

    def _elsewhere(self, rank: int, pairing: Collection[int], long: Mapping[tuple[int, int, str], _Said]) -> str:
        """Planned collective in which ``rank`` waits for one of the ``pairing`` ranks; "" if it does not."""
        for (other, number, lane), said in long.items():
            if other == rank and lane not in (PAIRING, AGREED):
                awaited = set(pairing).intersection(self._groups.get(number) or ())
                here = (long.get((each, number, lane)) for each in awaited)
                if any(each is None or each.sequence != said.sequence for each in here):
                    return said.what
        return ""

    def waiting(self, now: float, renewal_s: float = math.inf) -> Iterator[Waiting]:
        """Collectives that ranks are inside of, by reports not older than ``renewal_s`` or the renewal time.

        A negotiated collective may move any number of bytes: while all members are inside, the engine's limit applies.
        """
        self._said = {key: said for key, said in self._said.items() if now - said.heard_s <= self._renewal_s}
        together: dict[tuple[int, str, int], dict[int, _Said]] = {}
        for (rank, process_set, lane), said in self._said.items():
            if now - said.heard_s > renewal_s:
                continue
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
