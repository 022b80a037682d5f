"""Topology: the places of a rank, derived from nothing but the list of hosts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.topology import Topology

hosts = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9).map(tuple)


def test_the_words_of_horovod() -> None:
    there = Topology.of(rank=3, hosts=("a", "a", "a", "b"), generation=1)
    assert (there.local_rank, there.local_size, there.cross_rank, there.cross_size) == (0, 1, 1, 2)
    assert there.host == "b"
    assert not there.is_homogeneous


@given(hosts)
def test_local_and_cross_places_are_consistent(hosts: tuple[str, ...]) -> None:
    everyone = [Topology.of(rank, hosts, generation=1) for rank in range(len(hosts))]
    assert len({(t.host, t.local_rank) for t in everyone}) == len(hosts)
    for t in everyone:
        assert t.local_size == hosts.count(t.host)
        peers = [p for p in everyone if p.local_rank == t.local_rank]
        assert t.cross_size == len(peers)
        assert sorted(p.cross_rank for p in peers) == list(range(len(peers)))
    assert everyone[0].is_homogeneous == (len({t.local_size for t in everyone}) == 1)
