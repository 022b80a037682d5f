"""A plan reads each byte once, keeps what fits, moves about the least, and is the same in every process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.planning.order import WindowOrder
from farandole.data.planning.placement import level_for
from farandole.data.planning.plan import HostSpec, StagingPlan, plan
from farandole.data.planning.shares import crossing, share_out
from farandole.data.staging.host_plan import planned
from farandole.data.staging.protocol import HostEntry
from farandole.errors import UsageError


@dataclass(frozen=True)
class Situation:
    """Pieces, and hosts that hold some of them."""

    sizes: list[int]
    hosts: list[HostSpec]

    @property
    def held(self) -> np.ndarray:
        """Pieces x hosts by name: who holds what."""
        ordered = sorted(self.hosts, key=lambda host: host.name)
        return np.array([[piece in host.holds for host in ordered] for piece in range(len(self.sizes))], dtype=np.bool_)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=30))
    names = draw(st.lists(st.text("abc1", min_size=1, max_size=4), min_size=1, max_size=7, unique=True))
    room = st.one_of(st.just(0), st.integers(0, sum(sizes) // len(names) * 2), st.integers(0, 3 * sum(sizes)))
    kept = st.sets(st.integers(0, len(sizes) - 1)) if draw(st.booleans()) else st.just(set())
    hosts = [HostSpec(name, draw(room), frozenset(draw(kept)), draw(st.integers(0, 9)) == 0) for name in names[1:]]
    return Situation(sizes, [HostSpec(names[0], draw(room), frozenset(draw(kept))), *hosts])


@given(situations(), st.integers(0, 40))
def test_each_piece_is_read_once_and_no_host_is_too_full(situation: Situation, reserve: int) -> None:
    found, held = plan(situation.sizes, situation.hosts, reserve), situation.held
    sizes, somewhere, kept = found.sizes, held.any(axis=1), found.copies.any(axis=1)
    assert ((found.copies * sizes[:, None]).sum(axis=0) <= found.capacities).all()
    assert (found.loads() == (found.copies * sizes[:, None]).sum(axis=0)).all()
    assert (found.streamed == ~kept).all()
    assert ((found.reads < 0) == (somewhere & kept)).all()
    readers = found.reads[found.reads >= 0]
    assert {found.names[reader] for reader in readers} <= {h.name for h in situation.hosts if not h.leaving}
    assert found.copies[np.flatnonzero((found.reads >= 0) & kept), found.reads[(found.reads >= 0) & kept]].all()
    if found.data_bytes <= sum(min(c, found.data_bytes) for c in found.capacities.tolist()):
        assert found.replicas >= 1
    assert found.read_bytes == sizes[~somewhere | found.streamed].sum()
    assert found.shared_bytes(3) == found.read_bytes + 2 * found.streamed_bytes
    assert found.shared_bytes(0) == 0


@given(situations())
def test_copies_come_from_hosts_that_have_them(situation: Situation) -> None:
    """Whatever is held, read or received is there in the end, once on each host, unless it is dropped."""
    found, has = plan(situation.sizes, situation.hosts), situation.held
    kept = (found.reads >= 0) & ~found.streamed
    has[np.flatnonzero(kept), found.reads[kept]] = True
    waiting = [*zip(*(each.tolist() for each in found.sends), strict=True)]
    while waiting:
        possible = [(piece, source, target) for piece, source, target in waiting if has[piece, source]]
        assert possible, "a chain that begins nowhere"
        for send in possible:
            assert not has[send[0], send[2]]
            has[send[0], send[2]] = True
            waiting.remove(send)
    assert has[found.drops.pieces, found.drops.hosts].all()
    has[found.drops.pieces, found.drops.hosts] = False
    assert (has == found.copies).all()


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_and_what_numbers_are_made_of_is_nothing(situation: Situation, random: object) -> None:
    shuffled = list(situation.hosts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    arrays = [
        HostSpec(host.name, host.capacity, np.array(sorted(host.holds), dtype=np.int32), host.leaving)
        for host in shuffled
    ]
    same(plan(situation.sizes, situation.hosts), plan(np.array(situation.sizes), arrays))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.lists(st.integers(0, 400), min_size=1, max_size=8))
def test_small_pieces_leave_no_room_unused(sizes: list[int], capacities: list[int]) -> None:
    """Whatever streams would fit nowhere; where all would fit several times, there are so many copies of nearly all."""
    found = plan(sizes, [HostSpec(f"h{number}", room) for number, room in enumerate(capacities)])
    left = found.capacities - found.loads()
    assert all((size > left).all() for size in found.sizes[found.streamed])
    if len(set(capacities)) == 1 and capacities[0] >= sum(sizes):
        assert found.replicas == len(capacities)
        assert found.copies.all()


def same(first: StagingPlan, second: StagingPlan) -> None:
    one: Any
    other: Any
    for one, other in zip(first, second, strict=True):
        if isinstance(one, tuple) and one and isinstance(one[0], np.ndarray):
            assert all((a == b).all() for a, b in zip(one, tuple(other), strict=True))
        elif isinstance(one, np.ndarray):
            assert (one == other).all()
        else:
            assert one == other


def hosts_of(found: StagingPlan, room: int) -> list[HostSpec]:
    """The hosts of a plan, when all is done."""
    return [HostSpec(name, room, np.flatnonzero(found.copies[:, n])) for n, name in enumerate(found.names)]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("equal", [True, False])
def test_a_host_more_or_less_moves_about_the_least(copies: int, equal: bool) -> None:
    chance = np.random.default_rng(copies)
    joined: list[float] = []
    left: list[float] = []
    for _ in range(60):
        count = int(chance.integers(4, 24))
        pieces = int(chance.integers(5, 40)) * count
        sizes = np.full(pieces, 64) if equal else chance.integers(4, 65, pieces)
        data = int(sizes.sum())
        room = int(data * (copies + 0.45) / count)
        first = plan(sizes, [HostSpec(f"node{number:02}", room) for number in range(count)])
        second = plan(sizes, [*hosts_of(first, room), HostSpec(f"node{int(chance.integers(count)):02}x", room)])
        assert (first.replicas, second.read_bytes) == (copies, 0)
        if second.replicas == copies:
            joined.append(second.sent_bytes * (count + 1) / (copies * data))
        hosts = hosts_of(first, room)
        gone = hosts.pop(int(chance.integers(count)))
        third = plan(sizes, hosts)
        if third.replicas == copies and not third.streamed_bytes:
            left.append((third.sent_bytes + third.read_bytes) / int(sizes[np.array(gone.holds)].sum()))
            assert copies == 1 or third.read_bytes == 0
    assert len(joined) > 20
    assert len(left) > 20
    assert 0.8 < np.mean(joined) <= 1.2
    assert np.mean(left) <= 1.2


def test_loads_are_even_where_capacities_allow() -> None:
    sizes = np.random.default_rng(2).integers(4, 65, 4000)
    found = plan(
        sizes, [HostSpec(f"node{number}", int(sizes.sum())) for number in range(3)] + [HostSpec("small", 9000)]
    )
    assert found.replicas == 3
    assert found.loads()[found.names.index("small")] <= 9000
    found = plan(sizes, [HostSpec(f"node{number:02}", int(sizes.sum()) // 12) for number in range(16)])
    loads, reads = found.loads(), np.bincount(found.reads, sizes)
    assert loads.max() <= 1.01 * loads.mean()
    assert reads.max() <= 1.01 * reads.mean()


def test_a_warm_restart_reads_nothing_and_moves_nothing() -> None:
    sizes = np.random.default_rng(3).integers(4, 65, 500)
    for factor in (1.3, 2.7, 9.0):
        room = int(sizes.sum() * factor / 8)
        first = plan(sizes, [HostSpec(f"n{number}", room) for number in range(8)])
        again = plan(sizes, hosts_of(first, room))
        assert (again.read_bytes, again.sent_bytes, len(again.drops.pieces)) == (0, 0, 0)
        assert (again.copies == first.copies).all()


def test_a_host_that_leaves_hands_over_what_nobody_else_has() -> None:
    first = plan([10] * 40, [HostSpec(name, 200) for name in "abc"])
    hosts = [HostSpec(h.name, 200, h.holds, leaving=h.name == "b") for h in hosts_of(first, 200)]
    found = plan([10] * 40, hosts)
    assert found.read_bytes == 0
    assert found.copies[:, [0, 2]].any(axis=1).all()
    assert not found.copies[:, 1].any()
    assert {*found.sends.sources.tolist()} == {1}
    assert {*found.drops.hosts.tolist()} == {1}


def test_a_smaller_cache_gives_up_what_others_can_have() -> None:
    first = plan([10] * 40, [HostSpec(name, 200) for name in "abc"])
    hosts = [HostSpec(h.name, 60 if h.name == "a" else 200, h.holds) for h in hosts_of(first, 200)]
    found = plan([10] * 40, hosts)
    assert found.loads()[0] <= 60
    assert found.read_bytes == 0
    assert not found.streamed.any()
    assert {*found.drops.hosts.tolist()} == {0}


def test_extra_copies_stay_until_their_room_is_needed() -> None:
    everywhere = range(40)
    hosts = [HostSpec("a", 400, everywhere), HostSpec("b", 399, everywhere)]
    found = plan([10] * 40, hosts)
    assert found.replicas == 1
    assert found.copies.sum() == 40 + 39


def test_half_of_the_data_streams() -> None:
    sizes = np.full(1000, 64)
    found = plan(sizes, [HostSpec(f"n{number}", 8000) for number in range(4)])
    assert found.streamed_bytes == 32_000
    assert found.shared_bytes(4) == found.least_bytes(4) == 64_000 + 3 * 32_000
    streams = np.bincount(found.reads[found.streamed])
    assert streams.max() - streams.min() <= 1
    kept = plan(sizes, [HostSpec(f"n{number}", 8000) for number in range(4)], reserve=128)
    assert kept.streamed_bytes == 32_000 + 4 * 128
    entries = [HostEntry(f"n{number}", 8000, []) for number in range(4)]
    assert planned(entries, sizes).shared_bytes(4) <= 1.02 * 2.5 * 64_000
    none = plan(sizes, [HostSpec("a", 0), HostSpec("b", 0)])
    assert none.streamed.all()
    assert np.bincount(none.reads).tolist() == [500, 500]


@pytest.mark.parametrize("hosts", [2, 4, 16])
def test_each_host_reads_what_its_ranks_use_where_not_all_data_fit(hosts: int) -> None:
    sizes, rows, samples = np.full(400 * hosts, 64), 64, 10
    found = plan(sizes, [HostSpec(f"n{number:02}", 64 * 200) for number in range(hosts)])
    order = WindowOrder(range(0, samples * len(sizes) + 1, samples), 2 * hosts, seed=2, groups=hosts)
    holders = found.copies | (found.streamed[:, None] & (found.reads[:, None] == np.arange(hosts)))
    assert (holders.sum(axis=1) == 1).all()
    crossed = 0
    for start in range(0, len(order), hosts * rows):
        batch = holders[order[start : start + hosts * rows] // samples]
        counts = [len(batch) // hosts] * hosts
        counts[0] += len(batch) - sum(counts)
        crossed += crossing(batch, range(hosts), share_out(batch, range(hosts), counts))
    assert crossed <= 0.02 * len(order)


def test_everything_everywhere() -> None:
    found = plan([10] * 40, [*(HostSpec(name, 400) for name in "abc"), HostSpec("none", 0)])
    assert found.copies[:, :3].all()
    assert not found.copies[:, 3].any()
    assert found.sent_bytes == 2 * 400
    most = [HostSpec(name, 400) for name in "abc"] + [HostSpec("half", 200)]
    assert plan([10] * 40, most).copies.sum(axis=0).tolist()[-1] <= 20


def test_no_pieces_and_one() -> None:
    nothing = plan([], [HostSpec("a", 5)])
    assert (nothing.read_bytes, nothing.least_bytes(3), len(nothing.reads)) == (0, 0, 0)
    assert plan([7], [HostSpec("a", 7), HostSpec("b", 7)]).copies.all()


def test_a_level_fills_rooms() -> None:
    assert level_for(10, np.array([2, 100, 100])) == 4
    assert level_for(10, np.array([1, 1])) == 1
    assert level_for(0, np.array([5])) == 0


def test_plans_are_the_same_for_ever() -> None:
    """In every process, on every host: they agree without talking."""
    digests = set()
    for order in (range(9), reversed(range(9))):
        hosts = [HostSpec(f"node{n}", 30_000 + n, frozenset(range(n, 3000, 50))) for n in order]
        found = plan(np.arange(1, 3001) % 61 + 4, hosts)
        parts = (found.copies, found.reads, *found.sends)
        digests.add(hashlib.sha256(b"".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()[:16])
    assert digests == {"9e4e18fbfd204091"}


def test_wrong_hosts_and_pieces_are_refused() -> None:
    two = [HostSpec("a", 1), HostSpec("a", 2)]
    for sizes, hosts, text in (
        ([1], two, "two hosts have one name"),
        ([1], [], "needs a host that stays"),
        ([1], [HostSpec("a", 1, leaving=True)], "needs a host that stays"),
        ([0], [HostSpec("a", 1)], "sizes of pieces"),
        ([1], [HostSpec("a", -1)], "a has a capacity of -1 bytes"),
        ([1], [HostSpec("a", 1, [1])], "its cache is of other data"),
    ):
        with pytest.raises(UsageError, match=text):
            plan(sizes, hosts)
