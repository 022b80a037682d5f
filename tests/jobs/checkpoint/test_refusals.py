"""States that no checkpoint can hold, on ranks that write it and on ranks that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from farandole.errors import UsageError
from farandole.numpy.checkpoints import Checkpoints
from farandole.runtime.session.init import init, shutdown
from farandole.testing.rank import RankContext
from workbench.jobs import run_job


def saves(_: RankContext, folder: Path) -> list[str]:
    """Tries to save what no file gives back, and then what it can."""
    init()
    said = []
    with Checkpoints(folder) as checkpoints:
        for step, state in ((1, {"w": np.ones(1), "path": folder}), (0.5, {}), (2, {"w": np.ones(1)})):
            try:
                checkpoints.save(step, state)  # type: ignore[arg-type]
            except UsageError as error:
                said.append(str(error).split(":")[0])
    shutdown()
    return said


def test_what_cannot_be_saved_is_refused_on_all_ranks(tmp_path: Path) -> None:
    refused = ["state['path'] is a PosixPath", "step=0.5"]
    assert run_job(saves, 2, tmp_path) == [refused, refused]
    assert (tmp_path / "step-000000000002").is_dir()
