"""Members of a group by host, and the lanes by which data travel between hosts; pure.

>>> layout = HostLayout.of(("a", "a", "a", "b"), member=1)
>>> layout.hosts, layout.host, layout.index, layout.lanes
(((0, 1, 2), (3,)), 0, 1, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class HostLayout:
    """Members by host, from the view of one member. All are indices in the group, not global ranks.

    A *lane* connects one member of each host, its *carriers*: lane 0 the first members, lane 1 the second, and so on.
    There are as many ``lanes`` as the smallest host has members. Each lane carries an equal share of an array that
    belongs to all members, so that a host sends and receives everything once, however many members it has. The data of
    a single member use one lane, of which that member is a *passenger*.
    """

    hosts: tuple[tuple[int, ...], ...]
    host: int
    index: int
    lanes: int

    @classmethod
    def of(cls, names: Sequence[str], member: int) -> HostLayout:
        """Make the layout from ``names``, the host of each member; hosts are ordered by their first members."""
        by_host: dict[str, list[int]] = {}
        for each, name in enumerate(names):
            by_host.setdefault(name, []).append(each)
        host, index = list(by_host).index(names[member]), by_host[names[member]].index(member)
        return cls(tuple(map(tuple, by_host.values())), host, index, min(map(len, by_host.values())))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Members of this host, including this member."""
        return self.hosts[self.host]

    @property
    def carries(self) -> bool:
        """True if this member carries a lane, whose number is then its index."""
        return self.index < self.lanes

    @property
    def lane(self) -> int:
        """Lane of which this member is a passenger."""
        return self.index % self.lanes

    @property
    def is_even(self) -> bool:
        """True if all hosts have the same number of members: then each member carries only its own data."""
        return all(len(members) == self.lanes for members in self.hosts)

    def carriers(self, lane: int) -> tuple[int, ...]:
        """Carriers of a lane, by host."""
        return tuple(members[lane] for members in self.hosts)

    def passengers(self, host: int, lane: int) -> tuple[int, ...]:
        """Members of a host whose own data use ``lane``; its carrier is first."""
        return self.hosts[host][lane :: self.lanes]
