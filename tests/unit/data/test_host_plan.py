"""Assignments: one plan on all hosts, and routes that form chains."""

from __future__ import annotations

import random

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from farandole.data.staging.board import SHARED, Board
from farandole.data.staging.host_plan import TAKERS, HostPlan, pieces_in, planned
from farandole.data.staging.protocol import Assign, HostEntry
from tests.support.data.staging_hosts import entry


def assignments(seed: int, hosts: int, pieces: int, leaving: tuple[str, ...] = ()) -> list[HostPlan]:
    chance = random.Random(seed)
    sizes = np.array([chance.randint(1, 50) for _ in range(pieces)], np.int64)
    names = [f"node{number}" for number in range(hosts)]
    entries = [
        entry(name, chance.randint(0, 100 * pieces), [p for p in range(pieces) if chance.random() < 0.2], pieces)
        for name in names
    ]
    chance.shuffle(entries)
    entries = [msgspec.structs.replace(each, leaving=each.name in leaving) for each in entries]
    return [HostPlan(Assign(1, entries), name, sizes) for name in names if name not in leaving]


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


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 12))
@example(45099, 4, 9)
def test_a_host_that_leaves_is_asked_once_for_what_only_it_has(seed: int, hosts: int, pieces: int) -> None:
    names = [f"node{number}" for number in range(hosts)]
    ours = assignments(seed, hosts, pieces, leaving=("node0",))
    held = {name: pieces_in(each.holds, pieces) for each in ours[0].request.hosts for name in [each.name]}
    for piece in range(pieces):
        askers = [each for each in ours if "node0" in each.route(piece)]
        is_last = held["node0"][piece] and not any(held[name][piece] for name in names[1:])
        assert len(askers) == is_last
        for each in askers:
            assert each.route(piece)[0] == "node0"
            board = Board(each.plan.sizes, each.capacity)
            each.assign_to(board, range(pieces))
            task = board.next_fetch(0.0)
            assert task is None or task.piece in each._last, "these come first"  # from node0, or who has got it there
            each.gone.add("node0")
            assert "node0" not in each.route(piece)
            each.gone.clear()


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12))
def test_pieces_without_room_go_where_there_is_some(seed: int, hosts: int, pieces: int) -> None:
    names = [f"node{number}" for number in range(hosts)]
    ours = assignments(seed, hosts, pieces)
    for piece in range(pieces):
        found = {name: each.elsewhere(piece) for name, each in zip(names, ours, strict=True)}
        chain = {name for name, each in zip(names, ours, strict=True) if each._chain(piece).count(name)}
        takers = {name: [other for other in route[:-1] if other not in chain] for name, route in found.items()}
        for name, route in found.items():
            assert route[-1] == SHARED
            assert route[: len(chain - {name})].count(name) == 0
            assert {*route[: len(chain - {name})]} == chain - {name}
            for other in set(names) - chain:
                assert takers[name] == takers[other], "all ask the same one first, which keeps the piece"
        if hosts <= TAKERS and not ours[0].plan.streamed.any():
            assert {*takers[names[0]], *chain} == {*names}
