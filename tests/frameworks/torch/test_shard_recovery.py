"""Which rank keeps which copy, and which part is taken from whom after a loss: pure, for all small jobs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest

from farandole.torch.elastic.state import ShardClaim, recovery_plan
from farandole.torch.state_shards import copy_holders


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_each_rank_keeps_one_copy_and_it_is_on_another_host_where_that_can_be(size: int) -> None:
    for hosts in product("abc", repeat=size):
        holders = copy_holders(hosts)
        assert sorted(holders) == list(range(size))
        assert all(rank != holder for rank, holder in enumerate(holders))
        elsewhere = sum(hosts[rank] != hosts[holder] for rank, holder in enumerate(holders))
        most = max(Counter(hosts).values())
        assert elsewhere == (size if 2 * most <= size else 2 * (size - most))


def _claims(size: int, lost: tuple[int, ...], behind: tuple[int, ...]) -> dict[int, ShardClaim]:
    """Of ranks that have lost others in step 7, whose vote ``behind`` have not seen pass."""
    holders = copy_holders("a" * size)
    parts = {rank: (rank, holders.index(rank)) for rank in range(size) if rank not in lost}
    return {r: ShardClaim(6 if r in behind else 7, {"o": (size, parts[r])}, r in behind, 4) for r in parts}


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_part_is_taken_from_a_rank_that_has_it_unless_both_are_lost(size: int) -> None:
    holders = copy_holders("a" * size)
    for count in range(1, size):
        for lost in combinations(range(size), count):
            left = [rank for rank in range(size) if rank not in lost]
            for behind in (each for some in range(len(left)) for each in combinations(left, some)):
                claims = _claims(size, lost, behind)
                plan = recovery_plan(list(claims.values()))
                both = [part for part in range(size) if part in lost and holders[part] in lost]
                assert (plan.step, plan.committed, plan.lost.get("o", [])) == (7, 4, both)
                assert plan.goes_back == bool(both)
                for part, source in enumerate(plan.sources["o"]):
                    having = claims[left[source]].parts["o"] if source >= 0 else None
                    assert part in both if having is None else part in having[1]


def test_who_has_the_whole_is_asked_and_a_rank_without_a_state_is_not() -> None:
    part, new = (3, (0, 2)), ShardClaim(-1, {"a": None, "b": None})
    plan = recovery_plan([new, ShardClaim(5, {"a": part, "b": None}), ShardClaim(5, {"a": (3, (1, 0)), "b": None})])
    assert plan.sources == {"a": [1, 2, 1], "b": []}
    stale = ShardClaim(4, {"a": (3, (1, 0)), "b": None})
    assert recovery_plan([ShardClaim(5, {"a": part, "b": None}), stale]).lost == {"a": [1]}
    mixed = recovery_plan([ShardClaim(5, {"a": part, "b": None}), ShardClaim(5, {"a": None, "b": None})])
    assert (mixed.sources, mixed.lost) == ({"a": [], "b": []}, {})
    assert not recovery_plan([new, new]).goes_back
    assert recovery_plan([new, ShardClaim(-1, {"a": part, "b": None}, committed=3)]).goes_back
