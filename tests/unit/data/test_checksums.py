"""Checksums of the blocks of a piece: every flipped bit is found, in the bytes and in the checksums themselves."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.staging.checksums import Checksums

BOUNDS = st.lists(st.integers(1, 3000), min_size=1, max_size=30).map(lambda sizes: np.cumsum([0, *sizes]))


def made(bounds: np.ndarray) -> tuple[Checksums, bytearray]:
    data = bytearray(np.random.default_rng(1).bytes(int(bounds[-1])))
    sums = Checksums.unknown(bounds)
    sums.note(0, len(sums), memoryview(data))
    return sums, data


@given(BOUNDS, st.data())
def test_a_flipped_bit_is_found_in_the_blocks_that_cover_it(bounds: np.ndarray, data: st.DataObject) -> None:
    sums, content = made(bounds)
    begin = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(begin + 1, len(content)))
    first, last = sums.covering(begin, end)
    assert bounds[first] <= begin < end <= bounds[last]
    assert (first == last - 1 or bounds[first + 1] <= begin < end) or bounds[first] <= begin
    assert bounds[last - 1] < end, "a block too many"
    part = memoryview(content)[bounds[first] : bounds[last]]
    assert sums.verify(first, last, part)
    content[data.draw(st.integers(int(bounds[first]), int(bounds[last]) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not sums.verify(first, last, part)


@given(BOUNDS, st.integers(1, 10_000))
def test_runs_make_up_the_piece(bounds: np.ndarray, nbytes: int) -> None:
    sums, _ = made(bounds)
    runs = sums.runs(nbytes)
    assert (runs[0][0], runs[-1][1]) == (0, len(sums))
    assert all(before[1] == after[0] for before, after in itertools.pairwise(runs))
    assert all(last == first + 1 or sums.nbytes(first, last) <= nbytes for first, last in runs)


@given(BOUNDS, st.data())
def test_damaged_checksums_are_none(bounds: np.ndarray, data: st.DataObject) -> None:
    sums, _ = made(bounds)
    text = bytearray(sums.encode())
    again = Checksums.decode(bounds, bytes(text))
    assert again is not None
    assert (again.values == sums.values).all()
    assert again.whole() == sums.whole()
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert Checksums.decode(bounds, bytes(text)) is None
    assert Checksums.decode(bounds, bytes(text[:-1])) is None
    assert Checksums.decode(np.append(bounds, bounds[-1] + 5), sums.encode()) is None


def test_a_piece_without_bytes_has_none() -> None:
    sums = Checksums.unknown(np.array([0]))
    assert (len(sums), sums.runs(100), Checksums.decode(sums.bounds, sums.encode()) is not None) == (0, [], True)
