"""The order in which shards are added up does not depend on who has them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from farandole.gradients.shard_sums import Shards, block, combine, cover, is_tree_of_blocks


def text(whole: Shards) -> str:
    """The sum as one worker writes it."""
    return combine(whole, {Shards(i, i + 1): str(i) for i in range(whole.end)}, "({}+{})".format)


@given(st.integers(1, 40), st.data())
def test_any_number_of_workers_adds_in_the_same_order(count: int, data: st.DataObject) -> None:
    whole = Shards(0, count)
    size = data.draw(st.integers(1, count))
    sums: dict[Shards, str] = {}
    for rank in range(size):
        part = block(rank, size, count)
        mine = {Shards(i, i + 1): str(i) for i in range(part.begin, part.end)}
        for shards in cover(whole, part):  # what a worker adds up by itself
            sums[shards] = combine(shards, mine, "({}+{})".format)
    assert combine(whole, sums, "({}+{})".format) == text(whole)


@given(st.integers(0, 100), st.integers(1, 20))
def test_blocks_are_consecutive_and_even(count: int, size: int) -> None:
    blocks = [block(rank, size, count) for rank in range(size)]
    assert blocks[0].begin == 0
    assert blocks[-1].end == count
    assert all(a.end == b.begin for a, b in itertools.pairwise(blocks))
    lengths = [each.end - each.begin for each in blocks]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 200), st.data())
def test_few_partial_sums_travel(count: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(begin + 1, count))
    parts = cover(Shards(0, count), Shards(begin, end))
    assert [i for part in parts for i in range(part.begin, part.end)] == list(range(begin, end))
    assert len(parts) <= 2 * count.bit_length()


@given(st.integers(1, 30), st.integers(0, 4))
def test_where_the_tree_above_the_blocks_is_one_over_workers(size: int, doublings: int) -> None:
    count = size << doublings
    assert is_tree_of_blocks(size, count)
    blocks = [block(rank, size, count) for rank in range(size)]
    assert all(cover(Shards(0, count), each) == [each] for each in blocks)
    above = {each: str(rank) for rank, each in enumerate(blocks)}
    assert combine(Shards(0, count), above, "({}+{})".format) == text(Shards(0, size))
