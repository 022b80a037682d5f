"""Topology of a job: its ranks, and the hosts they are on.

>>> t = Topology.of(rank=2, hosts=("a", "a", "b", "b"), generation=1)
>>> t.local_rank, t.local_size, t.cross_rank, t.cross_size
(0, 2, 1, 2)
"""

from __future__ import annotations

from typing import final

import msgspec


@final
class Topology(msgspec.Struct, frozen=True):
    """Position of one rank among all, for one generation. The terms are those of Horovod and MPI.

    ``hosts[r]`` is the host of rank ``r``. The *cross* group of a rank are the ranks with its local rank on every host.
    """

    rank: int
    hosts: tuple[str, ...]
    generation: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @classmethod
    def of(cls, rank: int, hosts: tuple[str, ...], generation: int) -> Topology:
        """Derive all fields from the list of hosts by rank."""
        host = hosts[rank]
        local = [r for r, h in enumerate(hosts) if h == host]
        local_rank = local.index(rank)
        ranks_of: dict[str, list[int]] = {}
        for r, h in enumerate(hosts):
            ranks_of.setdefault(h, []).append(r)
        cross = [ranks[local_rank] for ranks in ranks_of.values() if len(ranks) > local_rank]
        return cls(rank, hosts, generation, local_rank, len(local), cross.index(rank), len(cross))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def host(self) -> str:
        """Host of this rank."""
        return self.hosts[self.rank]

    @property
    def is_homogeneous(self) -> bool:
        """True if every host has the same number of ranks."""
        counts = {self.hosts.count(h) for h in set(self.hosts)}
        return len(counts) == 1
