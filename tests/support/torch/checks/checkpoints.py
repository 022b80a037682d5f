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
from farandole.checkpoint.codec import take_apart
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


def leave(root: Path, step: int, what: dict[str, Any]) -> None:
    """Write ``what`` as an earlier job did, on this rank alone."""
    codec = TorchCodec()
    tree, tensors = take_apart(what, codec.adapter)
    writing = folder.writing(root, step, folder.new_mark())
    writing.mkdir(parents=True)
    content = {restoring.TREE: tree, restoring.TENSORS: tensors}
    shard = folder.write_shard(writing, "shard-0-of-1", lambda file: codec.dump(content, file))
    folder.finish(writing, folder.CheckpointManifest(step, [shard], "0"))


def check_that_any_number_of_ranks_restores_what_another_wrote() -> None:
    for sharded in (False, True):
        with shared_folder() as root, hvd.Checkpoints(root, sharded=sharded) as checkpoints:
            assert checkpoints.restore() is None
            for step in (1, 2):
                checkpoints.save(step, state(step))
            found = checkpoints.restore()
            assert found is not None
            assert found.step == found.state["step"] == 2
            alone = restoring.read(root, restoring.choose(root, [2]), TorchCodec())  # as a job of one rank does
            for each in (found.state, alone):
                assert all(map(torch.equal, each["layers"], state(2)["layers"]))
            shards = folder.read_manifest(folder.folder_of(root, 2)).shards
            assert len(shards) == (hvd.size() if sharded else 1)


def check_that_all_take_the_last_good_one() -> None:
    with shared_folder() as root, hvd.Checkpoints(root, sharded=True) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state(step))
        checkpoints.wait()
        hvd.barrier()
        if hvd.rank() == hvd.size() - 1:
            torn = folder.folder_of(root, 2) / f"shard-{hvd.rank()}-of-{hvd.size()}"
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


def check_that_ranks_with_folders_of_their_own_get_what_rank_0_has() -> None:
    """An earlier job has left other bytes in the folder of each host, of the same step and of later ones."""
    values = {0: [5], 1: [5, 9], 2: []}[min(hvd.rank(), 2)]
    with shared_folder() as root:
        elsewhere = root / f"of-rank-{hvd.rank()}"
        for step in values:
            leave(elsewhere, step, state(100 * hvd.rank() + step))
        found = hvd.Checkpoints(elsewhere).restore()
        assert found is not None
        assert (found.step, found.state["step"]) == (5, 5)
        assert all(map(torch.equal, found.state["layers"], state(5)["layers"]))


def check_that_what_is_damaged_on_one_host_alone_comes_from_rank_0() -> None:
    with shared_folder() as root:
        elsewhere = root / f"of-rank-{hvd.rank()}"
        leave(elsewhere, 5, state(5))
        if hvd.rank() == 1:
            shard = folder.folder_of(elsewhere, 5) / "shard-0-of-1"
            content = bytearray(shard.read_bytes())
            at = content.index(torch.full((6,), 11.0).numpy().tobytes())
            content[at + 3] ^= 1  # the sign of a weight
            shard.write_bytes(content)
        found = hvd.Checkpoints(elsewhere).restore()
        assert found is not None
        assert all(map(torch.equal, found.state["layers"], state(5)["layers"]))


def check_that_a_folder_rank_0_cannot_look_into_is_an_error_on_all_ranks() -> None:
    with shared_folder() as root:
        mine = root / ("long" * 100 if hvd.rank() == 0 else "below")
        with pytest.raises(CheckpointError, match=r"rank 0 on \S+ cannot read .*File name too long"):
            hvd.Checkpoints(mine).restore()


def check_that_what_rank_0_could_not_write_is_an_error_of_every_restore() -> None:
    with shared_folder() as root:
        (root / "file").touch()
        hvd.barrier()
        checkpoints = hvd.Checkpoints(root / "file")
        checkpoints.save(1, state(1))
        with pytest.raises(CheckpointError, match=r"step 1 .* was not written: rank 0 on \S+ says .*Not a directory"):
            checkpoints.restore()
        assert checkpoints.restore() is None
