"""Checkpoints that all ranks write: what goes wrong on one of them goes wrong for all."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from farandole.checkpoint import folder
from farandole.checkpoint.folder import MANIFEST, CheckpointManifest
from farandole.checkpoint.writer import Writer
from farandole.errors import AbortError, CheckpointError
from farandole.runtime.session.init import init, shutdown
from farandole.testing.rank import RankContext
from farandole.torch import Checkpoints
from workbench.jobs import run_job


def _unnamed(member: RankContext, root: str) -> list[str]:
    """Rank 0 has written its share, and cannot give the checkpoint its name."""
    finish = folder.finish

    def blocked(folder: Path, manifest: CheckpointManifest, back_to: int | None = None) -> Path:
        if manifest.step == 0:
            (folder / MANIFEST).mkdir()  # where the manifest is to be written
        return finish(folder, manifest, back_to)

    folder.finish = blocked
    init()
    said = []
    for step in range(2):
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


def _elsewhere(member: RankContext, base: str) -> list[str]:
    """Ranks that do not see each other's files: a folder of each host that has the same name."""
    init()
    root = Path(base) / "saved"
    mine = Path(base) / f"of-{member.rank}"
    mine.mkdir()
    said = []
    os.chdir(mine)
    checkpoints = Checkpoints("saved", sharded=True)
    checkpoints.save(1, {"weight": torch.ones(4), "other": torch.ones(4)})
    with pytest.raises(CheckpointError) as caught:
        checkpoints.wait()
    said.append(str(caught.value))
    said.append(str(folder.steps(Path("saved"))))
    assert not root.exists()
    shutdown()
    return said


def test_a_checkpoint_whose_shards_rank_0_does_not_see_gets_no_name(tmp_path: Path) -> None:
    for text, steps in run_job(_elsewhere, 3, str(tmp_path)):
        assert "rank 0 on " in text
        assert "shard-1-of-3 of rank 1 on " in text
        assert "shard-2-of-3 of rank 2 on " in text
        assert "all ranks have to see one folder" in text
        assert steps == "[]"


def test_a_shard_that_is_shorter_than_it_was_said_to_be_is_no_checkpoint(tmp_path: Path) -> None:
    writing = folder.writing(tmp_path, 1, "1")
    writing.mkdir()
    said = [folder.write_shard(writing, f"shard-{i}-of-2", lambda file: file.write(b"12345678")) for i in range(2)]
    os.truncate(writing / "shard-1-of-2", 5)
    with pytest.raises(folder.IncompleteError, match=r"shard-1-of-2 .* 5 bytes instead of 8"):
        folder.finish(writing, folder.CheckpointManifest(1, said, "0"))
    assert folder.steps(tmp_path) == []


def _whole(member: RankContext, root: str) -> None:
    init()
    with Checkpoints(root, sharded=True) as checkpoints:
        checkpoints.save(1, {"weight": torch.ones(4), "other": torch.ones(4)})
    shutdown()


def test_a_shard_that_is_missing_is_named_with_its_rank(tmp_path: Path) -> None:
    run_job(_whole, 2, str(tmp_path))
    (folder.folder_of(tmp_path, 1) / "shard-1-of-2").unlink()
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match=r"shard-1-of-2 of rank 1 on .*No such"),
    ):
        checkpoints.restore(1)


def test_a_checkpoint_that_gets_no_name_is_an_error_on_every_rank(tmp_path: Path) -> None:
    root = tmp_path / "saved"
    for without, with_name in run_job(_unnamed, 3, str(root)):
        assert without.startswith(f"the checkpoint of step 0 in {root} was not written: rank 0 on ")
        assert "manifest.json: Is a directory" in without
        assert with_name == "[1]"


def _meeting(rank: int, told: Path, named: Path) -> Callable[[], None]:
    """Have rank 2 be lost while rank 0 names the checkpoint; returns what rank 1 calls when it has learnt of that.

    Rank 0 waits for rank 1 to come out of the writing, or to begin to remove files; there rank 1 waits for rank 0.
    """
    sync, gather, unlink, flushed = folder.sync_folder, Writer.gather, os.unlink, list[Path]()

    def slow_sync(folder: Path) -> None:
        flushed.append(folder)
        if len(flushed) == 1:
            told.read_bytes()
        else:
            named.write_bytes(b"")
        sync(folder)

    def dies(self: Writer, value: Any, name: str) -> list[Any]:
        if ".named" in name:
            os._exit(3)
        return gather(self, value, name)

    def slow_unlink(*given: Any, **by_name: Any) -> None:
        meet()
        unlink(*given, **by_name)

    def meet() -> None:
        if os.unlink is slow_unlink:
            os.unlink = unlink
            told.write_bytes(b"")
            named.read_bytes()

    if rank == 0:
        folder.sync_folder = slow_sync
    elif rank == 1:
        os.unlink = slow_unlink
    else:
        Writer.gather = dies  # type: ignore[method-assign]
    return meet


def _orphaned(member: RankContext, root: str, pipes: str) -> tuple[str, list[str]]:
    init()
    checkpoints = Checkpoints(root, sharded=True, keep=1)
    checkpoints.save(1, {"weight": torch.ones(4), "other": torch.ones(4)})
    checkpoints.wait()
    meet = _meeting(member.rank, Path(pipes, "told"), Path(pipes, "named"))
    checkpoints.save(2, {"weight": torch.ones(4), "other": torch.ones(4)})
    with pytest.raises(AbortError) as caught:
        checkpoints.wait()
    meet()
    shutdown()
    return str(caught.value), sorted(path.name for path in folder.folder_of(Path(root), 2).iterdir())


def test_a_checkpoint_that_rank_0_is_naming_is_removed_by_no_rank_that_learns_of_a_death(tmp_path: Path) -> None:
    for name in ("told", "named"):
        os.mkfifo(tmp_path / name)
    root = tmp_path / "saved"
    for said, files in run_job(_orphaned, 3, str(root), str(tmp_path), may_die=[2])[:2]:
        assert "rank 2" in said
        assert files == [MANIFEST, *(f"shard-{i}-of-3" for i in range(3))]
    with Checkpoints(root) as checkpoints:
        found = checkpoints.restore()
    assert found is not None
    assert (found.step, folder.steps(root)) == (2, [2])
    assert list(folder.unfinished(root)) == []


def _two(member: RankContext, root: str) -> list[float]:
    """Both are written at once, and the ranks begin them in another order."""
    init()
    best, last = (Checkpoints(Path(root, name), sharded=True) for name in ("best", "last"))
    for each, value in [(best, 1.0), (last, 2.0)][:: 1 if member.rank else -1]:
        each.save(7, {"weight": torch.full((4,), value), "other": torch.full((4,), value)})
    best.close()
    last.close()
    found = [each.restore(7) for each in (best, last)]
    shutdown()
    return [float(each.state[key][0]) for each in found if each is not None for key in ("weight", "other")]


def test_checkpoints_of_one_step_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    assert run_job(_two, 2, str(tmp_path)) == [[1.0, 1.0, 2.0, 2.0]] * 2


def _job(member: RankContext, root: str) -> list[int]:
    init()
    with Checkpoints(root, sharded=True, keep=0) as checkpoints:
        for step in range(20):
            checkpoints.save(step, {"weight": torch.ones(4000), "other": torch.ones(4000)})
    found = folder.steps(Path(root))
    shutdown()
    return found


def test_two_jobs_that_write_to_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_job, _job, 2, str(tmp_path)) for _ in range(2)]
        assert [job.result() for job in jobs] == [[list(reversed(range(20)))] * 2] * 2
    for step in range(20):
        with Checkpoints(tmp_path) as checkpoints:
            assert checkpoints.restore(step) is not None
    assert list(folder.unfinished(tmp_path)) == []
