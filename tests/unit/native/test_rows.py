"""Rows of a batch, read by one call: the bytes of ``os.pread``, and which rows failed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.native.rows import read_rows

SIZE = 5000


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path: Path = tmp_path_factory.mktemp("rows") / "bytes"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


@given(st.lists(st.integers(0, SIZE + 10), max_size=20), st.integers(0, 300))
def test_rows_are_what_pread_gives(fd: int, offsets: list[int], nbytes: int) -> None:
    into = np.full((len(offsets), nbytes), 77, np.uint8)
    addresses = [into.ctypes.data + row * nbytes for row in range(len(offsets))]
    failed = read_rows([fd] * len(offsets), offsets, addresses, nbytes)
    assert failed == [row for row, offset in enumerate(offsets) if nbytes and offset + nbytes > SIZE]
    for row, offset in enumerate(offsets):
        if row not in failed:
            assert into[row].tobytes() == os.pread(fd, nbytes, offset)


def test_a_descriptor_that_cannot_be_read_fails_its_row_alone(fd: int) -> None:
    into = np.zeros((3, 10), np.uint8)
    addresses = [into.ctypes.data + 10 * row for row in range(3)]
    assert read_rows([fd, -1, fd], [0, 0, 20], addresses, 10) == [1]
    assert into.tobytes() == os.pread(fd, 10, 0) + bytes(10) + os.pread(fd, 10, 20)


def test_lists_of_different_lengths_are_refused(fd: int) -> None:
    with pytest.raises(ValueError, match="1, 2, 1"):
        read_rows([fd], [0, 1], [0], 1)
