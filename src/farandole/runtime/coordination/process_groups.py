"""Process sets of one generation, by id, on the controller.

    >>> groups = ProcessGroups(4, [[2, 3]])
    >>> groups.get(0), groups.get(1), groups.get(2)
    (RankSet(0-3), RankSet(2-3), None)
    >>> groups.add([3, 1])
    (2, '')
    >>> groups.add([1, 3])
    (-1, 'process set 2 has these ranks already: [1, 3]')

Workers have ``ProcessSet`` objects; this list of the controller assigns the ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.runtime.coordination.rank_set import RankSet

GLOBAL = 0
"""Id of the set of all ranks."""

ADOPTED = 2**32
"""Ids from here on are chosen by the members of a group; the other ranks do not know such groups."""


@final
class ProcessGroups:
    """Process sets by id. No id is assigned twice, so a late message about a removed set cannot affect another one."""

    def __init__(self, size: int, static_sets: Sequence[Sequence[int]] = (), dynamic: bool = True) -> None:
        self._size = size
        self._dynamic = True  # for ``add`` below: static sets are always allowed
        self._ranks: dict[int, RankSet] = {GLOBAL: RankSet.span(0, size)}
        self._next_id = 1
        for ranks in static_sets:
            self.add(ranks)
        self._dynamic = dynamic

    def __len__(self) -> int:
        return len(self._ranks)

    def get(self, process_set: int) -> RankSet | None:
        """Ranks of a set; ``None`` for an unused id."""
        return self._ranks.get(process_set)

    def of(self, rank: int) -> list[int]:
        """Ids of the sets that contain ``rank``."""
        return [process_set for process_set, ranks in self._ranks.items() if rank in ranks]

    def add(self, ranks: Sequence[int]) -> tuple[int, str]:
        """Make a set; returns its id and "", or -1 and the reason for the refusal."""
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
        """Register a group whose members chose the id ``number``, at least ``ADOPTED``; False if it is invalid."""
        own = RankSet() if wrong_ranks(ranks, self._size) else RankSet.of(ranks)
        return bool(own) and number >= ADOPTED and self._ranks.setdefault(number, own) == own

    def remove(self, process_set: int) -> str:
        """Remove a set; returns the reason why it cannot be removed, or ""."""
        if not self._dynamic:
            return "process sets cannot be removed: dynamic_process_sets is off"
        if process_set == GLOBAL:
            return "the global process set cannot be removed"
        if self._ranks.pop(process_set, None) is None:
            return f"there is no process set {process_set}; there are {list(self._ranks)}"
        return ""


def fitting(static_sets: Sequence[list[int]], size: int) -> list[list[int]]:
    """Static process sets that are valid in an elastic job of this size."""
    groups = ProcessGroups(size)
    return [ranks for ranks in static_sets if not groups.add(ranks)[1]]


def wrong_ranks(ranks: Sequence[int], size: int) -> str:
    """Reason why ``ranks`` are not a valid process set in a job of ``size`` ranks, or ""."""
    if not ranks:
        return "a process set needs at least one rank"
    if len(set(ranks)) != len(ranks):
        return f"a rank is named twice in {list(ranks)}"
    if outside := [rank for rank in ranks if not 0 <= rank < size]:
        return f"rank {outside[0]} is not in this job, whose ranks are 0 to {size - 1}"
    return ""
