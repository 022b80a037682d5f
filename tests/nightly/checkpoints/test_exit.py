"""Scripts that end without ``close()``: their last checkpoint is on the disk all the same, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.checkpoint import folder
from tests.support.launching import Launch

SAVES = """
    import sys, torch
    import farandole.torch as hvd
    hvd.init()
    checkpoints = hvd.Checkpoints("saved", sharded={sharded}, keep=0)
    model = torch.nn.Linear(1000, 1000)
    for step in range(3):
        checkpoints.save(step, {{"model": model.state_dict()}})
    {end}
"""

RAISES = "raise RuntimeError('as the test wants')"
ENDS = [(1, "", 0), (2, "", 0), (2, RAISES, 1), (2, "sys.exit(3)", 3), (2, "hvd.shutdown()", 0)]


@pytest.mark.parametrize(("np", "end", "code"), ENDS)
def test_no_checkpoint_is_lost_however_the_script_ends(
    np: int, end: str, code: int, launch: Launch, tmp_path: Path
) -> None:
    sharded = np > 1 and end != RAISES
    done = launch(np, SAVES.format(end=end, sharded=sharded))
    assert done.code == code, done.stderr
    assert "terminate called" not in done.stderr
    assert folder.steps(tmp_path / "saved") == [2, 1, 0]
    assert list(folder.unfinished(tmp_path / "saved")) == []


def test_what_went_wrong_with_the_last_one_is_said_at_the_end(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("a file has that name")
    done = launch(1, SAVES.format(end="", sharded=False).replace("range(3)", "range(1)"))
    assert "the checkpoint of step 0 in saved was not written" in done.stderr
    assert "give another folder" in done.stderr
