"""Checks of checkpoints that a job writes and reads together."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole.checkpoint import folder, restoring
from farandole.errors import CheckpointError
from farandole.torch.checkpoints import TorchCodec


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """The same for all ranks."""
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(tempfile.TemporaryDirectory()) if hvd.rank() == 0 else None
        yield Path(hvd.broadcast_object(mine))
        hvd.barrier()


@contextlib.contextmanager
def one_name_for(path: Path) -> Iterator[Path]:
    """A name that all ranks have for paths of their own: that of a descriptor, and a folder below it."""
    number = 900
    opened = os.open(path, os.O_RDONLY | os.O_CREAT if not path.exists() else os.O_RDONLY, 0o600)
    os.dup2(opened, number)
    os.close(opened)
    try:
        yield Path(f"/proc/self/fd/{number}/below")
    finally:
        os.close(number)


def state(step: int) -> dict[str, Any]:
    """The same on all ranks."""
    return {"step": step, "layers": [torch.full((n,), float(step + n)) for n in range(7)]}


def check_that_any_number_of_ranks_restores_what_another_wrote() -> None:
    for sharded in (False, True):
        with shared_folder() as root, hvd.Checkpoints(root, sharded=sharded) as checkpoints:
            assert checkpoints.restore() is None
            for step in (1, 2):
                checkpoints.save(step, state(step))
            found = checkpoints.restore()
            assert found is not None
            assert found.step == found.state["step"] == 2
            alone = restoring.read(root, 2, TorchCodec())  # as a job of one rank does
            for each in (found.state, alone):
                assert all(map(torch.equal, each["layers"], state(2)["layers"]))
            shards = folder.read_manifest(folder.writer_of(root, 2)).shards
            assert len(shards) == (hvd.size() if sharded else 1)


def check_that_all_take_the_last_good_one() -> None:
    with shared_folder() as root, hvd.Checkpoints(root, sharded=True) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step))
        checkpoints.wait()
        hvd.barrier()
        if hvd.rank() == hvd.size() - 1:
            torn = folder.writer_of(root, 2) / f"shard-{hvd.rank()}-of-{hvd.size()}"
            torn.write_bytes(torn.read_bytes()[:-1])
        hvd.barrier()
        found = checkpoints.restore()
        assert found is not None
        assert found.step == 1
        [refused] = found.refused
        assert "bytes instead of" in refused


def check_that_one_rank_that_cannot_write_is_named_to_all() -> None:
    last = hvd.rank() == hvd.size() - 1
    with shared_folder() as root, one_name_for(root / "file" if last else root) as mine:
        checkpoints = hvd.Checkpoints(mine, sharded=True)
        checkpoints.save(1, state(1))
        with pytest.raises(CheckpointError, match=rf"rank {hvd.size() - 1} on \S+ says of .*Not a directory"):
            checkpoints.close()
        hvd.barrier()
        assert folder.steps(root) == []


def check_that_ranks_may_not_see_the_folder() -> None:
    with shared_folder() as root:
        elsewhere = root / f"of-rank-{hvd.rank()}"
        with hvd.Checkpoints(elsewhere) as checkpoints:
            checkpoints.save(5, state(5))
            found = checkpoints.restore()
        assert found is not None
        assert all(map(torch.equal, found.state["layers"], state(5)["layers"]))
        assert elsewhere.exists() == (hvd.rank() == 0)
