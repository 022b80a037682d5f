"""Checkpoints of NumPy arrays: what is saved is restored, and no code runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.checkpoint import folder
from farandole.errors import CheckpointError, UsageError
from farandole.numpy.checkpoints import Checkpoints, NumpyCodec


def state() -> dict[str, Any]:
    """What training could have: several dtypes and orders, and values of all kinds that a checkpoint holds."""
    whole = np.arange(12.0).reshape(3, 4)
    others = [np.array(3), np.empty((0, 2)), np.array([1 + 2j]), np.array(["2026"], "M8[Y]")]
    return {
        "arrays": [whole, whole[:, 1], whole.T, *others],
        "random": np.random.default_rng(3).bit_generator.state,
        "numbers": [None, True, 2**200, 0.1, float("inf"), 1.5 - 2j],
        "others": ("ü\n", b"\0\xff", (), {1: ("array",), "list": ["dict"]}),
    }


def same(found: Any, expected: Any) -> bool:
    """Equal, and of one type."""
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


def test_what_is_saved_is_restored(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        saved = state()
        checkpoints.save(1, saved)
        saved["arrays"][0][:] = 0  # what comes after save() is not in it
        found = checkpoints.restore()
    assert found is not None
    assert same(found.state, state())


def test_what_is_pickled_is_neither_written_nor_read(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match=r"state\['a'\] is a ndarray"):
            checkpoints.save(1, {"a": np.array([None])})
        checkpoints.save(1, state())
    with (tmp_path / "objects").open("wb") as file:
        np.lib.format.write_array(file, np.array([None]), allow_pickle=True)
    for content in ((tmp_path / "objects").read_bytes(), pickle.dumps({"tensors": {}})):
        (tmp_path / "foreign").write_bytes(content)
        with (tmp_path / "foreign").open("rb") as file, pytest.raises(ValueError, match=r"pickle|magic"):
            NumpyCodec().load(file)


def test_a_torn_one_is_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state())
        checkpoints.wait()
        shard = folder.folder_of(tmp_path, 1) / "shard-0-of-1"
        shard.write_bytes(shard.read_bytes()[:-1])
        assert checkpoints.restore() is None
        with pytest.raises(CheckpointError, match="bytes instead of"):
            checkpoints.restore(step=1)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "bfloat16", "int4"])
def test_dtypes_that_numpy_has_from_elsewhere_come_back(name: str, tmp_path: Path) -> None:
    kind = getattr(pytest.importorskip("ml_dtypes"), name)
    whole = np.arange(6).reshape(2, 3).astype(kind)
    saved = [whole.T, np.array(3, kind), np.empty((0, 2), kind), kind(3)]
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"values": saved})
        found = checkpoints.restore()
    assert found is not None
    assert [type(each) for each in found.state["values"]] == [np.ndarray] * 3 + [kind]
    for one, other in zip(found.state["values"], saved, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_records_are_refused(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        for dtype in ("i4,f8", "V4"):
            with pytest.raises(UsageError, match=r"state\['a'\] is a ndarray"):
                checkpoints.save(1, {"a": np.zeros(2, dtype)})
