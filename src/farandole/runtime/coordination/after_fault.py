"""Notices after a fault: which ranks wait for which, one line for each wait longer than a second; without any I/O.

    after = AfterFault()
    after.fault(now)                               # a generation has ended, or ranks received an error
    for text, uid in after.look(now, formation, generation):
        ...                                        # "waiting after a fault: rank 0 on a for rank 1 on b, ..."

After a fault ranks may diverge, and the user watches the output. At other times a wait of a second is normal: ranks
validate, load data and compile. So notices end ``ALERT_S`` after the last fault, and the stall inspector reports longer
waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from farandole.runtime.coordination.formation import Formation
from farandole.runtime.coordination.generation import Generation
from farandole.runtime.coordination.rank_names import name_ranks
from farandole.runtime.coordination.stall import MOST_WAITS

NOTICE_S = 1.0
"""Shortest wait that is reported; ranks report their waits more often than that."""

ALERT_S = 60.0
"""Time for which waits are reported after a fault."""

LOOK_S = 0.5
"""Interval between two looks."""


@final
class Told(NamedTuple):
    """A line for users, and the first waiting worker, in whose notebook cell it is shown."""

    text: str
    uid: bytes


@final
class _Wait(NamedTuple):
    """Wait of members for others; ``key`` is constant while the wait lasts."""

    key: tuple[object, ...]
    since_s: float
    who: str
    where: str
    whom: str
    uid: bytes


@final
class AfterFault:
    """Reporter of waits after the faults of a job; it outlives generations. Without ``enabled`` it reports nothing."""

    def __init__(self, enabled: bool = True) -> None:
        self.deadline_s: float | None = None
        """Time of the next look; ``None`` while no fault is recent."""
        self._enabled, self._until_s = enabled, 0.0
        self._told: set[tuple[object, ...]] = set()

    def fault(self, now: float) -> None:
        """Start to report waits, including those reported before."""
        if self._enabled:
            self._until_s, self.deadline_s = now + ALERT_S, now + LOOK_S
            self._told.clear()

    def left_s(self, now: float) -> float:
        """Seconds for which waits are still reported; 0 if they are not."""
        return 0.0 if self.deadline_s is None else max(0.0, self._until_s - now)

    def look(self, now: float, formation: Formation, generation: Generation | None) -> list[Told]:
        """Notices to show now, of waits in ``init`` and in collectives."""
        self.deadline_s = now + LOOK_S if self.left_s(now) else None
        every = [*_in_init(formation), *(_in_collectives(generation, now) if generation is not None else ())]
        due = [each for each in every if now - each.since_s >= NOTICE_S and each.key not in self._told]
        self._told.update(each.key for each in due)
        between: dict[tuple[str, str], list[_Wait]] = {}
        for each in due:
            between.setdefault((each.who, each.whom), []).append(each)
        return [_told(waits, now) for waits in between.values()]


def _told(waits: list[_Wait], now: float) -> Told:
    """Combine waits of the same workers for the same others into one notice."""
    first = waits[0]
    seconds = now - min(each.since_s for each in waits)
    where = ", ".join(each.where for each in waits[:MOST_WAITS])
    more = f" and {len(waits) - MOST_WAITS} more" if len(waits) > MOST_WAITS else ""
    text = f"waiting after a fault: {first.who} for {first.whom}, {seconds:.1f} s so far, in {where}{more}"
    return Told(text, first.uid)


def _in_init(formation: Formation) -> Iterator[_Wait]:
    if (found := formation.waits()) is not None:
        key = ("init", *(member.uid for member in found.members))
        yield _Wait(key, found.since_s, found.who, "init()", found.whom, found.members[0].uid)


def _in_collectives(generation: Generation, now: float) -> Iterator[_Wait]:
    if generation.over is None:
        for each in generation.waiting(now, NOTICE_S):
            if each.missing:
                who, whom = (name_ranks(ranks, generation.hosts) for ranks in (each.ready, each.missing))
                yield _Wait(each.key, each.since_s, who, each.what, whom, generation.members[each.ready[0]].uid)
