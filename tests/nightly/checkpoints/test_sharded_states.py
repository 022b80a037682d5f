"""Sharded checkpoints of ranks whose states or calls differ: right on all of them, or an error on all of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farandole.checkpoint import folder
from farandole.errors import CheckpointError, UsageError
from farandole.runtime.session.init import init, shutdown
from farandole.testing.rank import RankContext
from farandole.torch import Checkpoints
from workbench.jobs import run_job

NAMES = "abcdefg"


def _state(names: str) -> dict[str, Any]:
    return {name: torch.full((4,), float(ord(name))) for name in names}


def _differs(rank: int) -> dict[str, Callable[[Any], None]]:
    """A save of each kind that is not the same on rank 1."""
    there = rank == 1
    return {
        "more": lambda each: each.save(1, {"model": _state("abc") if there else _state("ab")}),
        "fewer": lambda each: each.save(1, {"model": _state("ab") if there else _state("abc")}),
        "shape": lambda each: each.save(1, {"model": {"a": torch.ones(2 + there), "b": torch.ones(1)}}),
        "dtype": lambda each: each.save(1, [torch.ones(2, dtype=torch.int32 if there else torch.float32)]),
        "step": lambda each: each.save(1 + there, _state("ab")),
        "object": lambda each: each.save(1, {"model": Path() if there else 1, **_state("ab")}),
        "number": lambda each: each.save(0.5 if there else 1, _state("ab")),
    }


def _refused(member: RankContext, root: str) -> dict[str, str]:
    init()
    checkpoints = Checkpoints(root, sharded=True)
    said = {}
    for kind, save in _differs(member.rank).items():
        if member.rank == 1 and kind in ("object", "number"):
            with pytest.raises(UsageError):
                save(checkpoints)
        else:
            save(checkpoints)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.wait()
        said[kind] = str(caught.value).partition(" was not written: ")[2]
    checkpoints.save(3, _state("ab"))
    checkpoints.close()
    assert (folder.steps(Path(root)), list(folder.unfinished(Path(root)))) == ([3], [])
    shutdown()
    return said


def test_what_is_not_the_same_on_all_ranks_is_an_error_on_all(tmp_path: Path) -> None:
    said, *others = run_job(_refused, 3, str(tmp_path / "saved"))
    assert others == [said] * 2
    said = {kind: text.replace(f" on {socket.gethostname()} ", " on HOST ") for kind, text in said.items()}
    same = "with sharded=True all ranks save the same tensors"
    model = "in state['model']"
    assert said["more"].startswith(f"rank 1 on HOST has float32[4] {model}['c'], and rank 0 on HOST none: {same}")
    assert said["fewer"].startswith(f"rank 1 on HOST has no tensor {model}['c'], and rank 0 on HOST float32[4]: {same}")
    assert said["shape"].startswith(
        f"rank 1 on HOST has float32[3] {model}['a'], and rank 0 on HOST float32[2]: {same}"
    )
    assert said["dtype"].startswith(f"rank 1 on HOST has int32[2] in state[0], and rank 0 on HOST float32[2]: {same}")
    assert said["step"] == "rank 1 on HOST saves step 2, and rank 0 on HOST step 1: all ranks save the same"
    assert "rank 1 on HOST cannot save: UsageError: state['model'] is a PosixPath" in said["object"]
    assert "rank 1 on HOST cannot save: UsageError: step=0.5: give a whole number" in said["number"]


def _reordered(member: RankContext, root: str) -> list[list[float]]:
    init()
    names = NAMES[member.rank :] + NAMES[: member.rank]
    with Checkpoints(root, sharded=True) as checkpoints:
        checkpoints.save(1, _state(names))
        found = checkpoints.restore()
    shutdown()
    assert found is not None
    assert list(found.state) == list(NAMES)
    return [found.state[name].tolist() for name in NAMES]


def test_ranks_may_have_their_tensors_in_another_order(tmp_path: Path) -> None:
    expected = [[float(ord(name))] * 4 for name in NAMES]
    assert run_job(_reordered, 3, str(tmp_path)) == [expected] * 3


def _two(member: RankContext, root: str) -> list[tuple[int, list[float], list[float]]]:
    init()
    names = [Path(root, name, "ckpt") for name in ("generator", "critic")]
    each = [Checkpoints(name, sharded=True) for name in names]
    for step in range(5):
        for value, checkpoints in enumerate(each):
            checkpoints.save(step, {"w": torch.full((4,), float(value)), "v": torch.full((4,), float(value))})
    found = [checkpoints.restore() for checkpoints in each]
    for checkpoints in each:
        checkpoints.close()
    shutdown()
    return [(one.step, one.state["w"].tolist(), one.state["v"].tolist()) for one in found if one is not None]


def test_two_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    assert run_job(_two, 2, str(tmp_path)) == [[(4, [value] * 4, [value] * 4) for value in (0.0, 1.0)]] * 2
