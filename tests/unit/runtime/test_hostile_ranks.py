"""Nothing that a rank submits can break the coordinator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import Kind
from farandole.control.messages import Entry, Orders, Signature, decode, encode
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.rank_set import RankSet

numbers = st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**64 - 1))
signatures = st.builds(
    Signature,
    st.one_of(st.integers(0, 8), numbers),
    st.lists(numbers, max_size=3),
    st.lists(st.lists(numbers, max_size=3), max_size=3),
    numbers,
    st.floats(),
    st.floats(),
    numbers,
    st.lists(numbers, max_size=4),
    st.sampled_from(["cpu", "cuda:0", "", ":"]),
)
names = st.sampled_from(["x", "y", "join", "", "é" * 500])
entries = st.builds(Entry, st.integers(-1, 3), names, st.integers(-2, 3), st.none() | signatures)


peers = st.sets(st.integers(0, 2)).map(RankSet.of)


@given(st.lists(st.tuples(peers, st.lists(entries, max_size=4)), max_size=12), st.integers(0, 3))
def test_nothing_a_peer_says_can_raise(messages: list[tuple[RankSet, list[Entry]]], leaver: int) -> None:
    negotiation = Negotiation(["a"] * 3, [[0, 1]], fusion_threshold_bytes=64, cache_capacity=2)
    for now, (ranks, said) in enumerate(messages):
        if now == 6 and leaver < 3:
            negotiation.remove_rank(leaver, "it left")
        for entry in said:
            negotiation.submit(ranks, entry, float(now))
        negotiation.end_crossed(ranks)
        for told, order in negotiation.decide(float(now)):
            assert set(told) <= {0, 1, 2}
            assert order.kind in list(Kind)
            decode(encode(Orders(1, [order])))
    assert len(list(negotiation.waiting())) == negotiation.statistics()["pending"]
    assert all(negotiation.last(rank) is not None for rank in range(3))
