"""Training that goes back to an earlier checkpoint: what it writes from there is newer than what it has left."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import farandole.checkpoint
from farandole.checkpoint import folder
from farandole.checkpoint.codec import Codec
from farandole.errors import CheckpointError
from farandole.numpy.checkpoints import Checkpoints as NumpyCheckpoints
from farandole.torch import Checkpoints
from farandole.torch.checkpoints import TorchCodec
from tests.support.launching import Launch


def written(root: Path, branch: str, *steps: int, back_to: int | None = None, keep: int = 0) -> None:
    """Save these, from the checkpoint ``back_to`` on."""
    with Checkpoints(root, keep=keep) as checkpoints:
        if back_to is not None:
            assert checkpoints.restore(back_to) is not None
        for step in steps:
            checkpoints.save(step, {"branch": branch})


def newest(root: Path) -> tuple[int, str] | None:
    """The checkpoint that a restart goes on from."""
    with Checkpoints(root) as checkpoints:
        found = checkpoints.restore()
    return (found.step, found.state["branch"]) if found else None


def left(root: Path) -> list[Path]:
    """The folders of branches that were left."""
    return list(root.glob("later-than-*"))


def test_a_restart_goes_on_from_the_branch_that_was_written_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, "first", 100, 200, 300)
    written(tmp_path, "second", 150, back_to=100)
    assert newest(tmp_path) == (150, "second")
    assert folder.steps(tmp_path) == [150, 100]
    [path] = left(tmp_path)
    assert path.name.startswith("later-than-000000000100-")
    assert (newest(path), folder.steps(path)) == ((300, "first"), [300, 200])
    assert f"checkpoints of steps 200 to 300 are in {path} from now on" in caplog.text
    written(tmp_path, "second", 180, 400)
    assert folder.steps(tmp_path) == [400, 180, 150, 100]
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError, match=rf"No such file.*it is in {path}"):
        checkpoints.restore(200)


def test_a_step_of_the_branch_that_is_left_is_not_replaced(tmp_path: Path) -> None:
    written(tmp_path, "first", 100, 200)
    written(tmp_path, "second", 200, back_to=100)
    assert (newest(tmp_path), folder.steps(tmp_path)) == ((200, "second"), [200, 100])
    assert [newest(path) for path in left(tmp_path)] == [(200, "first")]


def test_one_that_counts_anew_wins_as_well(tmp_path: Path) -> None:
    written(tmp_path, "first", 100, 200)
    written(tmp_path, "second", 0, back_to=200)
    assert newest(tmp_path) == (0, "second")
    assert [folder.steps(path) for path in left(tmp_path)] == [[200, 100]]


def test_who_only_looks_back_leaves_everything_as_it_is(tmp_path: Path) -> None:
    written(tmp_path, "first", 100, 200, 300)
    with Checkpoints(tmp_path, keep=0) as checkpoints:
        for step in (100, 200):
            assert checkpoints.restore(step) is not None
        assert checkpoints.restore() is not None  # goes on from the newest after all
        checkpoints.save(250, {"branch": "first"})
        assert checkpoints.restore(100) is not None
        checkpoints.save(301, {"branch": "first"})
    assert (folder.steps(tmp_path), left(tmp_path)) == ([301, 300, 250, 200, 100], [])


class FailsOnce(Codec):
    """Cannot write its first checkpoint."""

    def __init__(self) -> None:
        super().__init__(TorchCodec().adapter)
        self.files, self.errors = TorchCodec(), iter([OSError(errno.EIO, "broken disk")])

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        for error in self.errors:
            raise error
        self.files.dump(content, file)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        return self.files.load(file)


def test_what_is_left_stays_until_the_first_of_the_new_branch_is_on_the_disk(tmp_path: Path) -> None:
    written(tmp_path, "first", 100, 200)
    with farandole.checkpoint.Checkpoints(tmp_path, FailsOnce(), on_error="warn") as checkpoints:
        assert checkpoints.restore(100) is not None
        checkpoints.save(150, {"branch": "second"})
        checkpoints.wait()
        assert (newest(tmp_path), left(tmp_path)) == ((200, "first"), [])
        checkpoints.save(160, {"branch": "second"})
    assert newest(tmp_path) == (160, "second")
    assert [newest(path) for path in left(tmp_path)] == [(200, "first")]


@pytest.mark.parametrize("done", range(3))
def test_a_crash_on_the_way_leaves_the_newest_of_either_branch(
    done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "first", 100, 200, 300)
    rename, moved = os.rename, list[int]()

    def crashes(*names: Any) -> None:
        if len(moved) == done:
            raise SystemExit
        rename(*names)
        moved.append(1)

    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore(100) is not None
        monkeypatch.setattr(os, "rename", crashes)
        checkpoints.save(150, {"branch": "second"})
        with pytest.raises(CheckpointError, match="SystemExit"):
            checkpoints.wait()
        monkeypatch.undo()
    assert newest(tmp_path) == ((300, "first") if done < 2 else (100, "first"))


def test_later_steps_that_a_training_knows_nothing_of_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, "first", 100)
    written(tmp_path, "second", 1, 2)
    assert caplog.text.count(f"{tmp_path} has a checkpoint of step 100") == 1
    assert "restore() takes the latest step" in caplog.text


LOST = """
    import os, signal
    import numpy as np
    from farandole.collective import ReduceOp
    from farandole.elastic.worker.run import run
    from farandole.elastic.worker.state import ObjectState
    from farandole.numpy.checkpoints import Checkpoints
    from farandole.runtime.session.init import init
    from workbench.jobs import NumpyCalls

    init()
    checkpoints = Checkpoints("saved", keep=0)
    state = ObjectState(step=checkpoints.restore(100).step)

    @run
    def train(state):
        while state.step < 105:
            NumpyCalls().allreduce("step", np.ones(1, np.int64), ReduceOp.SUM)
            state.step += 1
            checkpoints.save(state.step, {{"branch": "second"}})
            state.commit()
            if state.step == 103 and os.environ["FARANDOLE_WORKER_ID"] == "0":
                checkpoints.close()
                os.kill(os.getpid(), signal.SIGKILL)

    train(state)
    checkpoints.close()
"""


def test_another_rank_0_does_not_leave_the_branch_that_the_one_before_has_begun(launch: Launch, tmp_path: Path) -> None:
    with NumpyCheckpoints(tmp_path / "saved", keep=0) as checkpoints:
        for step in (100, 200):
            checkpoints.save(step, {"branch": "first"})
    done = launch(2, LOST.format(), options=["--min-np", "1"])
    assert done.code == 0, done.stderr
    assert folder.steps(tmp_path / "saved") == [105, 104, 103, 102, 101, 100]
    assert [folder.steps(path) for path in left(tmp_path / "saved")] == [[200]]
