"""Members of a group by host, and the lanes by which their data cross between hosts; pure.

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
    """Members by host, as one of them sees it. All are indices in the group, not global ranks.

    A *lane* leads from host to host: lane 0 through the first member of each, lane 1 through the second, and so on.
    There are as many ``lanes`` as the smallest host has members. Each carries an equal part of what belongs to all, so
    that a host sends and receives everything once, however many members it has. What belongs to one member crosses on
    one lane, of which that member is a *passenger*.
    """

    hosts: tuple[tuple[int, ...], ...]
    host: int
    index: int
    lanes: int

    @classmethod
    def of(cls, names: Sequence[str], member: int) -> HostLayout:
        """Lay out by ``names``, the hosts of all members; hosts are in the order of their first members."""
        by_host: dict[str, list[int]] = {}
        for each, name in enumerate(names):
            by_host.setdefault(name, []).append(each)
        host, index = list(by_host).index(names[member]), by_host[names[member]].index(member)
        return cls(tuple(map(tuple, by_host.values())), host, index, min(map(len, by_host.values())))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The members of this host, this one among them."""
        return self.hosts[self.host]

    @property
    def carries(self) -> bool:
        """True if this member carries a lane, which then has its index."""
        return self.index < self.lanes

    @property
    def lane(self) -> int:
        """The lane that this member is a passenger of."""
        return self.index % self.lanes

    @property
    def is_even(self) -> bool:
        """True if all hosts have as many members: then each carries for itself alone."""
        return all(len(members) == self.lanes for members in self.hosts)

    def carriers(self, lane: int) -> tuple[int, ...]:
        """The members of a lane, by host."""
        return tuple(members[lane] for members in self.hosts)

    def passengers(self, host: int, lane: int) -> tuple[int, ...]:
        """The members of a host whose own parts cross on ``lane``; who carries it comes first."""
        return self.hosts[host][lane :: self.lanes]
