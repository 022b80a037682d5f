"""Who sits where, and how messages are cut for it, for any placement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import Array, DType
from farandole.engines.arrays import plain_memory
from farandole.engines.hybrid.layout import PIECE_BYTES, HostLayout, MemberParts, Rounds, Shared
from farandole.engines.hybrid.pipeline import IN_FLIGHT

PLACEMENTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


def _layouts(hosts: list[str]) -> list[HostLayout]:
    return [HostLayout.of(hosts, place) for place in range(len(hosts))]


@given(PLACEMENTS)
def test_every_lane_has_one_carrier_on_each_host(hosts: list[str]) -> None:
    layouts = _layouts(hosts)
    assert {layout.lanes for layout in layouts} == {min(hosts.count(host) for host in hosts)}
    for place, layout in enumerate(layouts):
        assert layout.neighbours[layout.index] == place
        assert [hosts[each] for each in layout.neighbours] == [hosts[place]] * hosts.count(hosts[place])
        assert layout.is_even == (len({hosts.count(host) for host in hosts}) == 1)
        if layout.carries:
            carriers = layout.carriers(layout.lane)
            assert carriers[layout.host] == place
            assert [hosts[each] for each in carriers] == list(dict.fromkeys(hosts))


@given(PLACEMENTS)
def test_every_member_is_a_passenger_of_one_lane(hosts: list[str]) -> None:
    layouts = _layouts(hosts)
    lanes = range(layouts[0].lanes)
    aboard = [layouts[0].passengers(host, lane) for host in range(len(layouts[0].hosts)) for lane in lanes]
    assert sorted(place for places in aboard for place in places) == list(range(len(hosts)))
    for place, layout in enumerate(layouts):
        passengers = layout.passengers(layout.host, layout.lane)
        assert place in passengers
        assert passengers[0] == layout.carriers(layout.lane)[layout.host]


@given(PLACEMENTS, st.integers(0, 3 * PIECE_BYTES // 4), st.sampled_from([DType.FLOAT32, DType.COMPLEX128]))
def test_carriers_of_a_host_share_all_of_an_array(hosts: list[str], count: int, dtype: DType) -> None:
    array = Array(64, count, dtype)
    for host in set(hosts):
        shared = [Shared(layout, array) for place, layout in enumerate(_layouts(hosts)) if hosts[place] == host]
        assert len({tuple(map(tuple, each.counts)) for each in shared}) == 1
        own = [piece for k in range(len(shared[0].pieces)) for piece in (each.own[k] for each in shared) if piece.count]
        at = array.address
        for piece in own:
            assert piece.address == at
            at += piece.nbytes
        assert at == array.address + array.nbytes


def test_small_arrays_cross_on_the_first_lane() -> None:
    for count, own in ((1, [1, 0]), (8192, [8192, 0]), (8193, [8192, 1]), (40_000, [24_576, 15_424])):
        shared = [Shared(HostLayout.of("aabb", place), Array(64, count, DType.FLOAT32)) for place in (0, 1)]
        assert [each.own[0].count for each in shared] == own


@given(PLACEMENTS, st.data())
def test_parts_of_a_lane_are_contiguous_by_host(hosts: list[str], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, 5)) for _ in hosts]
    whole = Array(640, sum(counts), DType.INT64)
    for place, layout in enumerate(_layouts(hosts)):
        parts = MemberParts(layout, whole, counts)
        assert [parts.of[p].count for p in range(len(hosts))] == counts
        assert sum(parts.by_neighbour) == whole.count
        if layout.carries:
            assert sum(parts.by_host) == parts.lane.count == parts.by_neighbour[layout.index]
            at = parts.arrived.address
            for passenger in layout.passengers(layout.host, layout.lane):
                assert parts.of[passenger].address == at
                at += parts.of[passenger].nbytes
            assert at == parts.arrived.address + parts.arrived.nbytes
        else:
            assert not parts.lane.count + parts.arrived.count + parts.by_neighbour[layout.index], place


def test_rounds_take_everything_once_in_bounded_memory() -> None:
    counts = [0, 5_000_000, 1, 3_000_000]
    rooms = [plain_memory(0)] * IN_FLIGHT
    rounds = Rounds(HostLayout.of("aaab", 0), DType.FLOAT32, counts, rooms)
    taken = [0] * len(counts)
    assert rounds.number > IN_FLIGHT
    for k in range(rounds.number):
        parts = rounds[k]
        for place, count in enumerate(counts):
            piece = rounds.cut(Array(0, count, DType.FLOAT32), place, k)
            assert piece.address == 4 * taken[place]
            assert piece.count == parts.of[place].count
            taken[place] += piece.count
    assert taken == counts
    assert sum(room.nbytes for room in rooms) <= IN_FLIGHT * 8 * 2**20
