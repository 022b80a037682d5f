"""Checkpoints of rungs: whole, or none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from farandole.search.rung_checkpoint import (
    NAME,
    key_of,
    read_checkpoint,
    read_metrics,
    read_reported,
    write_checkpoint,
)

KEY = key_of({"lr": 0.1, "opt": "sgd"}, 7)


def test_the_last_that_is_whole_counts(tmp_path: Path) -> None:
    assert (read_reported(tmp_path, KEY), read_checkpoint(tmp_path, KEY)) == (None, None)
    write_checkpoint(tmp_path, KEY, 1, 0.5, {"w": [1.0]})
    write_checkpoint(tmp_path, KEY, 3, 0.25, {"w": [2.0]})
    assert (read_reported(tmp_path, KEY), read_checkpoint(tmp_path, KEY)) == ((3, 0.25), (3, {"w": [2.0]}))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_metrics_stand_behind_the_state(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 3, 0.25, {"w": [2.0]}, {"accuracy": 0.5, "ä": float("nan")})
    assert (read_reported(tmp_path, KEY), read_checkpoint(tmp_path, KEY)) == ((3, 0.25), (3, {"w": [2.0]}))
    assert str(read_metrics(tmp_path)) == "{'accuracy': 0.5, 'ä': nan}"
    for older in (b"", b"as it was"):
        (tmp_path / NAME).write_bytes(older)
        assert read_metrics(tmp_path) == {}


def test_folders_are_opened_before_the_file_as_nfs_would_hide_it_else(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 1, 0.5, {"w": [1.0]})
    opened: list[str] = []
    is_on = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:  # one cannot be removed
        if is_on and event == "open":
            opened.append(str(arguments[0]))

    sys.addaudithook(hook)
    read_reported(tmp_path, KEY)
    is_on.clear()
    assert opened == [str(tmp_path.parent), str(tmp_path), str(tmp_path / NAME)]


def test_a_file_that_another_process_with_our_number_writes_is_not_ours(tmp_path: Path) -> None:
    other = tmp_path / f".{NAME}-{os.getpid()}"
    other.write_bytes(b"half")
    write_checkpoint(tmp_path, KEY, 1, 0.5, {"w": [1.0]})
    assert other.read_bytes() == b"half"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([NAME, other.name])


def test_any_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 3, 0.25, {"w": [2.0]})
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:at])
        assert read_checkpoint(tmp_path, KEY) is None
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_checkpoint(tmp_path, KEY) is None


def test_what_cannot_be_pickled_leaves_the_one_before(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 1, 0.5, {"w": 1})
    with pytest.raises(TypeError):
        write_checkpoint(tmp_path, KEY, 3, 0.5, {"w": (each for each in "ab")})
    assert read_reported(tmp_path, KEY) == (1, 0.5)


def test_that_of_a_trial_with_other_parameters_or_another_seed_is_none(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 3, 0.5, {"w": 1})
    assert key_of({"opt": "sgd", "lr": 0.1}, 7) == KEY
    for other in (key_of({"lr": 0.2, "opt": "sgd"}, 7), key_of({"lr": 0.1, "opt": "sgd"}, 8)):
        assert read_reported(tmp_path, other) is None
        assert read_checkpoint(tmp_path, other) is None


def test_what_others_could_have_written_is_not_read(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, KEY, 3, 0.5, {"w": 1})
    (tmp_path / NAME).chmod(0o660)
    assert read_checkpoint(tmp_path, KEY) is None
