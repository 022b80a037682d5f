"""Digests of memory against the definition in Python, and what they must tell apart."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.native import core

MASK = 2**64 - 1
PI = (
    0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89,
    0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917,
)  # fmt: skip
"""The first hexadecimal digits of its fraction."""


def _fold(a: int, b: int) -> int:
    return (a * b & MASK) ^ (a * b >> 64)


def _defined(data: bytes) -> int:
    """The definition: four lanes over pairs of little-endian words, merged in order into the length."""
    lanes, keys = list(PI[:4]), PI[4:]
    padded = data + bytes(-len(data) % 64)
    for at in range(0, len(padded), 16):
        lane = at // 16 % 4
        first, second = (int.from_bytes(padded[at + i : at + i + 8], "little") for i in (0, 8))
        lanes[lane] = _fold(first ^ keys[lane], second ^ lanes[lane])
    merged = len(data)
    for each in lanes:
        merged = _fold(merged ^ keys[0], each ^ keys[1])
    return merged


def _digest(*arrays: np.ndarray) -> list[int]:
    return core.digest([a.ctypes.data for a in arrays], [a.nbytes for a in arrays])


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(0, 7))
def test_is_what_the_definition_says(ranges: list[bytes], offset: int) -> None:
    memory = np.frombuffer(bytes(offset) + b"".join(ranges), np.uint8)
    ends = list(itertools.accumulate(map(len, ranges), initial=memory.ctypes.data + offset))
    assert core.digest(ends[:-1], [len(r) for r in ranges]) == [_defined(r) for r in ranges]


def test_is_the_same_for_ever() -> None:
    assert _digest(np.arange(100, dtype=np.uint8)) == [0xD371F6303E5C8166]


def test_tells_every_length_and_every_pair_of_flipped_bits() -> None:
    """No two bits cancel, wherever they are: zeros of 71 lengths, and 144 bytes with one or two bits set."""
    zeros = np.zeros(144, np.uint8)
    seen = set(_digest(*(zeros[:n] for n in range(71))))
    bits = np.packbits(np.eye(8 * zeros.size, dtype=np.uint8), axis=1)
    for i in range(len(bits)):
        flipped = np.vstack([bits[i + 1 :], zeros]) | bits[i]
        seen.update(_digest(*flipped))
    assert len(seen) == 71 + 1152 * 1153 // 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tells_what_gradients_do_wrong(dtype: type[np.floating]) -> None:
    """Signs flipped in all pairs of places, values swapped or moved by one place, a factor, a neighbour's rounding."""
    right = np.random.default_rng(1).normal(size=64).astype(dtype)
    wrong = [right, -right, right * dtype(0.5), np.roll(right, 1), right[::-1].copy(), np.nextafter(right, dtype(9))]
    for i, j in itertools.combinations(range(right.size), 2):
        flipped, swapped = right.copy(), right.copy()
        flipped[[i, j]] *= dtype(-1)
        swapped[[i, j]] = swapped[[j, i]]
        wrong += [flipped, swapped]
    assert len(set(_digest(*wrong))) == len(wrong)


def test_digests_of_random_bytes_have_fair_bits() -> None:
    data = np.random.default_rng(2).integers(0, 256, (4096, 24), np.uint8)
    digests = np.array(_digest(*data), np.uint64)
    ones = [int((digests >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)]
    assert all(abs(count - 2048) < 6 * 32 for count in ones)


def _digested_beside(memory: np.ndarray) -> list[str]:
    """The order of events when a thread digests, and this one goes on as soon as it is given the GIL."""
    events: list[str] = []

    def digest() -> None:
        events.append("begins")
        _digest(memory)
        events.append("ends")

    thread = threading.Thread(target=digest)
    thread.start()
    events.append("meanwhile")
    thread.join()
    return events


def test_large_ranges_are_read_without_the_gil() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is interrupted: the GIL passes only where it is given away
    try:
        large = np.zeros(64 << 20, np.uint8)
        assert ["begins", "meanwhile", "ends"] in (_digested_beside(large) for _ in range(100))
    finally:
        sys.setswitchinterval(interval)


def test_no_range_and_an_empty_one() -> None:
    assert core.digest([], []) == []
    assert core.digest([0], [0]) == [_defined(b"")]
    with pytest.raises(ValueError, match="as many lengths as addresses are needed, got 1 for 2"):
        core.digest([0, 0], [0])
