"""Checkpoints of rungs: whole, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.search.rung_checkpoint import NAME, read_checkpoint, read_reported, write_checkpoint


def test_the_last_that_is_whole_counts(tmp_path: Path) -> None:
    assert (read_reported(tmp_path), read_checkpoint(tmp_path)) == (None, None)
    write_checkpoint(tmp_path, 1, 0.5, {"w": [1.0]})
    write_checkpoint(tmp_path, 3, 0.25, {"w": [2.0]})
    assert (read_reported(tmp_path), read_checkpoint(tmp_path)) == ((3, 0.25), (3, {"w": [2.0]}))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_any_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, 0.25, {"w": [2.0]})
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:at])
        assert read_checkpoint(tmp_path) is None
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_checkpoint(tmp_path) is None


def test_what_cannot_be_pickled_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, 0.5, {"w": 1})
    with pytest.raises(TypeError):
        write_checkpoint(tmp_path, 3, 0.5, {"w": (each for each in "ab")})
    assert read_reported(tmp_path) == (1, 0.5)
