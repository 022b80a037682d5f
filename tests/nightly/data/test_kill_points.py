"""kill -9 at 200 moments of an epoch, and 51 times while data are staged: nothing is lost, used twice or read again."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.data import stage
from farandole.data.loading.batches import Batches
from farandole.data.staging.sources import READ_BYTES
from tests.support.data.staging_source import made, source_of, staged_bytes, stagers, store_of, until_gone, write
from tests.support.waiting import until
from workbench.cluster import UnavailableError
from workbench.cluster.shared_folder import SharedFolder

FILES, SAMPLES, NBYTES, BATCH = 4, 80, 2000, 8
STEPS, MOMENTS = FILES * SAMPLES // BATCH, 5
"""Moments of a step: before it, with its batch, when it is computed, when its state is written, when that counts."""

UNDER_WAY = 2 * READ_BYTES
"""What the storage still serves to a stager that was killed."""


@pytest.fixture(autouse=True)
def _no_stager_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    until(lambda: not stagers(tmp_path), "for stagers to end without workers")


def forked(work: Callable[[], None]) -> int:
    """Start a process that ends with status 0 after ``work``, and with 1 if that raises."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def train(folder: Path, cache: str, kept: Path, size: int, kill_at: int = -1) -> None:
    """Train what is left of an epoch as ``size`` ranks, and be killed at a moment of it; ``kept`` is the checkpoint."""
    moments = itertools.count()

    def passes() -> None:
        if next(moments) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    saved: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"committed": []}
    staged = stage(source_of(folder, SAMPLES, NBYTES), cache=cache, limit="1GB")
    ranks = [Batches(staged, global_batch_size=BATCH, seed=3, threads=2) for _ in range(size)]
    for rank, batches in enumerate(ranks):
        batches.sampler.cursor.rearrange(rank, size)
        if "state" in saved:
            batches.load_state_dict(saved["state"])
    loops = [iter(batches) for batches in ranks]
    while True:
        passes()
        found: list[Any] = [next(loop, None) for loop in loops]
        if found[0] is None:
            return
        passes()
        for batches, rows in zip(ranks, found, strict=True):
            mine = batches.sampler.cursor.own_indices()
            assert [bytes(row) for row in rows] == [staged_bytes(index, SAMPLES, NBYTES) for index in mine]
            saved["committed"] += mine
        for batches in ranks:
            batches.commit()
        saved["state"] = ranks[0].state_dict()
        passes()
        aside = kept.with_suffix(".new")
        aside.write_text(json.dumps(saved))
        passes()
        aside.replace(kept)
        passes()


def test_the_ledger_of_an_epoch_is_a_dull_runs_though_it_is_killed_at_each_moment(tmp_path: Path) -> None:
    folder, cache = tmp_path / "set", str(tmp_path / "cache")
    write(folder, FILES, SAMPLES, NBYTES)

    def run(kept: Path, size: int, kill_at: int = -1) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(forked(lambda: train(folder, cache, kept, size, kill_at)), 0)[1])

    def committed(kept: Path) -> list[int]:
        found: list[int] = json.loads(kept.read_text())["committed"] if kept.exists() else []
        return found

    assert run(tmp_path / "dull", 1) == 0
    dull, kept = committed(tmp_path / "dull"), tmp_path / "kept"
    assert sorted(dull) == [*range(FILES * SAMPLES)]
    for step, moment in itertools.product(range(STEPS), range(MOMENTS)):
        assert run(kept, 1 + (step + moment) % 3, moment) == -signal.SIGKILL
        done = step + (moment == MOMENTS - 1)
        assert committed(kept) == dull[: done * BATCH], (step, moment)
    assert run(kept, 2) == 0
    assert committed(kept) == dull


def held(cache: Path) -> int:
    """Bytes of the pieces that are complete in a cache; a second job there has links to those of the first."""
    found = [sums.with_suffix("").stat() for sums in cache.rglob("????????.sums")]
    return sum({status.st_ino: status.st_size for status in found}.values())


def stage_all(folder: Path, cache: Path) -> None:
    """Stage a folder, compare all of it, and say good-bye."""
    staged = stage(source_of(folder, 50, 20_000), cache=str(cache), limit="1GB")
    assert all(bytes(staged[index]) == staged_bytes(index) for index in range(len(staged)))
    store_of(staged).link.close()


@pytest.mark.parametrize("killed", ["stager", "worker", "both"])
def test_what_is_there_is_not_read_again_after_a_kill_while_staging(tmp_path: Path, killed: str) -> None:
    """17 times each."""
    nbytes, chance = made(tmp_path / "set", files=12).manifest.nbytes, random.Random(killed)
    try:
        storage = SharedFolder(tmp_path / "set", rate_bytes_s=20e6)
    except UnavailableError as error:
        pytest.skip(str(error))
    with storage:
        folder = storage.mount("here")
        for turn in range(17):
            cache = tmp_path / f"cache-{turn}"
            storage.reset()
            worker, part = forked(lambda cache=cache: stage_all(folder, cache)), chance.randrange(nbytes)  # type: ignore[misc]
            until(lambda part=part: storage.bytes() > part, "for a part")  # type: ignore[misc]
            if killed != "worker":
                pids = stagers(cache)
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                until_gone(pids)
            read, kept = storage.bytes(), held(cache)
            if killed != "stager":
                os.kill(worker, signal.SIGKILL)
                assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) in (0, -signal.SIGKILL)
                worker = forked(lambda cache=cache: stage_all(folder, cache))  # type: ignore[misc]
            assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
            # A stager without workers goes on for some seconds: it and that of the next job may read what neither has.
            missing = (nbytes - kept) * (2 if killed == "worker" else 1)
            assert storage.bytes() <= read + missing + UNDER_WAY, (turn, read, kept)
            until(lambda cache=cache: not stagers(cache), "for the stager to end")  # type: ignore[misc]
            assert held(cache) >= nbytes  # each of two jobs that ran at once has its own
            assert not [*cache.rglob("*.new")]
