"""Process sets of one generation, by id, as the controller knows them.

    >>> groups = ProcessGroups(4, [[2, 3]])
    >>> groups.get(0), groups.get(1), groups.get(2)
    (RankSet(0-3), RankSet(2-3), None)
    >>> groups.add([3, 1])
    (2, '')
    >>> groups.add([1, 3])
    (-1, 'process set 2 has these ranks already: [1, 3]')

Workers know them as ``ProcessSet`` objects; this is the one list that gives the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.runtime.coordination.rank_set import RankSet

GLOBAL = 0
"""The id of the set of all ranks."""

ADOPTED = 2**32
"""From here on ids are those that members of groups have given these, which the other ranks know nothing of."""


@final
class ProcessGroups:
    """Process sets by id. No id is given twice, so a late message about a removed set cannot hit another."""

    def __init__(self, size: int, static_sets: Sequence[Sequence[int]] = (), dynamic: bool = True) -> None:
        self._size = size
        self._dynamic = True  # for ``add`` below: static sets need no leave
        self._ranks: dict[int, RankSet] = {GLOBAL: RankSet.span(0, size)}
        self._next_id = 1
        for ranks in static_sets:
            self.add(ranks)
        self._dynamic = dynamic

    def __len__(self) -> int:
        return len(self._ranks)

    def get(self, process_set: int) -> RankSet | None:
        """The ranks of a set; ``None`` for an id that is not in use."""
        return self._ranks.get(process_set)

    def of(self, rank: int) -> list[int]:
        """The ids of the sets that ``rank`` is in."""
        return [process_set for process_set, ranks in self._ranks.items() if rank in ranks]

    def add(self, ranks: Sequence[int]) -> tuple[int, str]:
        """Make a set; returns its id and "", or -1 and the reason why there is none."""
        if not self._dynamic:
            return -1, "process sets can be added only in init(): dynamic_process_sets is off"
        if error := wrong_ranks(sorted(ranks), self._size):
            return -1, error
        own = RankSet.of(ranks)
        for process_set, others in self._ranks.items():
            if others == own and process_set < ADOPTED:
                return -1, f"process set {process_set} has these ranks already: {list(own)}"
        self._ranks[self._next_id] = own
        self._next_id += 1
        return self._next_id - 1, ""

    def adopt(self, number: int, ranks: Sequence[int]) -> bool:
        """Take over a group to which its members have given a number of at least ``ADOPTED``; False if it cannot be."""
        own = RankSet() if wrong_ranks(ranks, self._size) else RankSet.of(ranks)
        return bool(own) and number >= ADOPTED and self._ranks.setdefault(number, own) == own

    def remove(self, process_set: int) -> str:
        """Remove a set; returns the reason why that cannot be, or ""."""
        if not self._dynamic:
            return "process sets cannot be removed: dynamic_process_sets is off"
        if process_set == GLOBAL:
            return "the global process set cannot be removed"
        if self._ranks.pop(process_set, None) is None:
            return f"there is no process set {process_set}; there are {list(self._ranks)}"
        return ""


def fitting(static_sets: Sequence[list[int]], size: int) -> list[list[int]]:
    """Process sets, of those given to ``init``, that an elastic job has at this size."""
    groups = ProcessGroups(size)
    return [ranks for ranks in static_sets if not groups.add(ranks)[1]]


def wrong_ranks(ranks: Sequence[int], size: int) -> str:
    """Reason why ``ranks`` are no process set of a job of ``size`` ranks, or ""."""
    if not ranks:
        return "a process set needs at least one rank"
    if len(set(ranks)) != len(ranks):
        return f"a rank is named twice in {list(ranks)}"
    if outside := [rank for rank in ranks if not 0 <= rank < size]:
        return f"rank {outside[0]} is not in this job, whose ranks are 0 to {size - 1}"
    return ""
