"""State from all who have it to those who need it, byte for byte."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.collective import Array, DType
from farandole.elastic.worker import transfer as module
from farandole.elastic.worker.transfer import FlatState, stripes, transfer
from farandole.errors import AbortError, EngineError
from farandole.runtime.session.init import init, rejoin, shutdown
from farandole.testing.rank import RankContext
from workbench.jobs import run_job

Bytes = npt.NDArray[np.uint8]


def flat(pieces: list[Bytes]) -> FlatState:
    return FlatState([Array(piece.ctypes.data, piece.size, DType.UINT8, piece) for piece in pieces])


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 64))
def test_stripes_are_all_bytes_once_and_even(nbytes: int, sources: int, round_bytes: int) -> None:
    rounds = stripes(nbytes, sources, round_bytes)
    places = [place for parts in rounds for part in parts for place in part]
    assert places == list(range(nbytes))
    for parts in rounds:
        assert len(parts) == sources
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert sum(map(len, parts)) <= round_bytes


@given(st.lists(st.integers(0, 9), max_size=6), st.data())
def test_pieces_are_one_sequence_of_bytes(lengths: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(lengths), dtype=np.uint8)
    pieces = [piece.copy() for piece in np.split(whole, np.cumsum(lengths)[:-1])] if lengths else []
    memory = flat(pieces)
    assert memory.nbytes == whole.size
    start = data.draw(st.integers(0, whole.size))
    part = range(start, data.draw(st.integers(start, whole.size)))
    found = np.zeros(len(part) + 1, np.uint8)
    memory.read(part, found.ctypes.data)
    assert found[:-1].tolist() == whole[part.start : part.stop].tolist()
    found += 100
    memory.write(part, found.ctypes.data)
    expected = whole.copy()
    expected[part.start : part.stop] += 100
    assert np.concatenate(pieces or [expected]).tolist() == expected.tolist()


def test_a_checksum_is_of_the_bytes_wherever_they_lie() -> None:
    whole = np.arange(100, dtype=np.uint8)
    apart = flat([whole[:30].copy(), whole[30:30], whole[30:].copy()])
    assert flat([whole]).checksum() == apart.checksum() != flat([whole[::-1].copy()]).checksum()
    assert flat([]).checksum() == 0


def moves(member: RankContext) -> list[bool]:
    """Many sizes, one or several sources, and a damaged stripe, in one job."""
    module.stripes.__defaults__ = (64,)
    init()
    done = []
    for number, (lengths, sources) in enumerate([([5, 0, 700], [0, 2]), ([], [1]), ([3], [0, 1]), ([64, 64], [2])]):
        have = np.random.default_rng(number).integers(0, 255, sum(lengths), dtype=np.uint8)
        mine = have.copy() if member.rank in sources else np.zeros_like(have)
        pieces = [piece.copy() for piece in np.split(mine, np.cumsum(lengths)[:-1])] if lengths else []
        moved = transfer(flat(pieces), sources, member.rank not in sources, f"state {number}")
        done.append(moved == have.size and np.concatenate(pieces or [have]).tolist() == have.tolist())
    shutdown()
    return done


def test_every_rank_has_the_bytes_of_the_sources() -> None:
    assert run_job(moves, 3) == [[True] * 4] * 3


def damages(member: RankContext) -> tuple[str, int]:
    """Rank 0 sends a stripe that does not fit its checksum; then all re-form and do it again."""
    init()
    content = np.full(1000, 7, np.uint8)
    pack = module._pack

    def damage(memory: FlatState, part: range, room: module._ReceiveBuffer) -> Array:
        packed = pack(memory, part, room)
        ctypes.memset(packed.address + 10, 0xFF, 1)
        return packed

    if member.rank == 0:
        module._pack = damage
    mine = content if member.rank == 0 else np.zeros(1000, np.uint8)
    said = ""
    try:
        transfer(flat([mine]), [0], member.rank != 0, "state")
        transfer(flat([mine]), [0], member.rank != 0, "state again")
    except (EngineError, AbortError) as error:
        said = str(error)
    module._pack = pack
    written = int(np.count_nonzero(mine == 255))
    rejoin()
    transfer(flat([mine]), [0], member.rank != 0, "state")
    assert mine.tolist() == [7] * 1000
    shutdown()
    return said, written


def test_a_damaged_stripe_is_refused_on_all_ranks_and_they_can_go_on() -> None:
    for said, written in run_job(damages, 3):
        assert "of the state arrived from rank 0 with checksum" in said
        assert not written


@pytest.mark.parametrize("sources", [1, 3])
def test_nothing_to_move_is_no_round(sources: int) -> None:
    assert stripes(0, sources) == []
