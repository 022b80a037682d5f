"""Planned lanes that some ranks have closed and others still use: some ranks dropped or replaced an optimizer.

    closed = ClosedLanes(hosts, groups)
    closed.add(0, LaneClosed(1, 0, "optimizer.0", 7))
    closed.refusal(1, Blocked(1, 0, "optimizer.0", 8, "optimizer.0: step 8", 0.1))      # why that can never end

The engine of such a lane sees at most a lost connection, and some engines not even that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.control.messages import Blocked, LaneClosed
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.rank_names import name_rank, name_ranks


@final
class ClosedLanes:
    """Lanes of one generation that some, but not all, members of their process set have closed."""

    def __init__(self, hosts: Sequence[str], groups: ProcessGroups) -> None:
        self._hosts, self._groups = hosts, groups
        self._closed: dict[tuple[int, str], dict[int, int]] = {}

    def add(self, rank: int, closed: LaneClosed) -> bool:
        """Record that ``rank`` has closed a lane; False if the message is invalid."""
        members = self._groups.get(closed.process_set)
        if members is None or rank not in members:
            return False
        ranks = self._closed.setdefault((closed.process_set, closed.lane), {})
        ranks[rank] = closed.sequence
        if len(ranks) == len(members):
            del self._closed[closed.process_set, closed.lane]
        return True

    def refusal(self, rank: int, blocked: Blocked) -> str:
        """Reason why the collective in which ``rank`` is blocked can never complete; "" if none is known."""
        closed = self._closed.get((blocked.process_set, blocked.lane), {})
        absent = [other for other, sequence in closed.items() if other != rank and sequence < blocked.sequence]
        if not absent:
            return ""
        who, them = name_rank(rank, self._hosts), name_ranks(absent, self._hosts)
        return (
            f"{who} is in {blocked.what}, but the script of {them} has dropped that optimizer, or made another one in "
            "its place: make, replace and drop optimizers at the same line on every rank"
        )
