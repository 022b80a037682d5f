"""Checkpoints that all ranks write: what goes wrong on one of them goes wrong for all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from farandole.checkpoint import folder
from farandole.errors import CheckpointError
from farandole.runtime.session.init import init, shutdown
from farandole.testing.jobs import run_job
from farandole.testing.rank import RankContext
from farandole.torch import Checkpoints


def _unnamed(member: RankContext, root: str) -> list[str]:
    """Rank 0 has written its share, and cannot give the checkpoint its name."""
    init()
    said = []
    for step in range(2):
        if step == 0 and member.rank == 0:  # where the manifest is to be written
            (folder.writing(Path(root), step, "1") / folder.MANIFEST).mkdir(parents=True)
        member.exchange(b"")
        checkpoints = Checkpoints(root, sharded=True)
        checkpoints.save(step, {"weight": torch.ones(4), "other": torch.ones(4)})
        if step == 0:
            with pytest.raises(CheckpointError) as caught:
                checkpoints.wait()
            said.append(str(caught.value))
        else:
            checkpoints.close()
            said.append(str(folder.steps(Path(root))))  # written, as ``close`` says: no rank is ahead of that
    shutdown()
    return said


def test_a_checkpoint_that_gets_no_name_is_an_error_on_every_rank(tmp_path: Path) -> None:
    root = tmp_path / "saved"
    for without, with_name in run_job(_unnamed, 3, str(root)):
        assert without.startswith(f"the checkpoint of step 0 in {root} was not written: rank 0 on ")
        assert "manifest.json: Is a directory" in without
        assert with_name == "[1]"
