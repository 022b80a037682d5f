"""Assignments: one plan on all hosts, and routes that form chains."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.staging.board import SHARED
from farandole.data.staging.host_plan import HostPlan, pieces_in, planned
from farandole.data.staging.protocol import Assign, HostEntry
from tests.support.data.staging_hosts import entry


def assignments(seed: int, hosts: int, pieces: int) -> list[HostPlan]:
    chance = random.Random(seed)
    sizes = np.array([chance.randint(1, 50) for _ in range(pieces)], np.int64)
    names = [f"node{number}" for number in range(hosts)]
    entries = [
        entry(name, chance.randint(0, 100 * pieces), [p for p in range(pieces) if chance.random() < 0.2], pieces)
        for name in names
    ]
    chance.shuffle(entries)
    return [HostPlan(Assign(1, entries), name, sizes) for name in names]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12))
def test_routes_are_chains_and_all_lead_to_shared_storage(seed: int, hosts: int, pieces: int) -> None:
    ours = assignments(seed, hosts, pieces)
    names = [f"node{number}" for number in range(hosts)]
    for piece in range(pieces):
        routes = {name: each.route(piece) for name, each in zip(names, ours, strict=True)}
        first = []
        for name, route in routes.items():
            assert route.count(SHARED) == 1
            assert name not in route
            assert len(set(route)) == len(route)
            first += [name] if route[0] == SHARED else []
        chain = [name for name in names if ours[names.index(name)].is_ours(piece)]
        before = {name: set(routes[name][: routes[name].index(SHARED)]) for name in chain}
        # Whoever is asked first comes earlier in the chain: no circle.
        assert all(name not in before[other] for name in chain for other in before[name] if other in before)
        if chain and ours[0].plan.reads[piece] >= 0:
            assert [name for name in chain if routes[name][0] == SHARED] == [names[ours[0].plan.reads[piece]]]


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12))
def test_every_piece_is_somebodys(seed: int, hosts: int, pieces: int) -> None:
    ours = assignments(seed, hosts, pieces)
    for piece in range(pieces):
        assert any(each.is_ours(piece) for each in ours)
    assert len({each.plan.copies.tobytes() for each in ours}) == 1


def test_bits_say_what_is_held() -> None:
    assert pieces_in(b"", 3).tolist() == [False] * 3
    assert pieces_in(np.packbits([True, False, True]).tobytes(), 3).tolist() == [True, False, True]


def test_data_without_bytes_have_a_plan() -> None:
    found = planned([HostEntry("node1", 0, []), HostEntry("node2", 100, [])], np.array([0], np.int64))
    assert len(found.sizes) == 1
