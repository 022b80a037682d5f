"""Staging by a real stager on one host: each byte once, healed bits, a killed stager. More of it is nightly."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.cli import main
from farandole.data import arrays
from farandole.data.staging.cache import clean
from farandole.data.staging.layout import StagedLayout
from farandole.data.staging.progress import await_staged
from farandole.data.staging.protocol import HostEntry
from farandole.data.staging.stage import stage
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.errors import UsageError
from tests.support.data.staging_source import (
    ended,
    flip,
    kill_stager,
    made,
    piece_file,
    same,
    staged_bytes,
    stagers,
    statistics,
    store_of,
)


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture(autouse=True)
def _no_stager_is_left(tmp_path: Path) -> Any:
    yield
    left = stagers(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "a stager is left"


def test_alone_each_byte_is_read_once_and_a_warm_start_reads_none(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        assert same(staged, source)
        found = statistics(staged)
        assert (found.shared_bytes, found.held_bytes, found.healed) == (source.manifest.nbytes, found.wanted_bytes, 0)
        names = {path.name for path in Path(found.folder).iterdir()}
        pieces = len(store_of(staged).pieces)
        own = {f"{piece:08x}{end}" for piece in range(pieces) for end in ("", ".sums")}
        assert names == {".farandole-cache", "plans", *own}
    again = stage(source, cache=cache, limit="1GB")
    with ended(again):
        shutil.rmtree(tmp_path / "set")
        for index in range(len(source)):
            assert bytes(again[index]) == bytes(staged_bytes(index))
        assert statistics(again).shared_bytes == 0


def test_the_plans_of_jobs_are_computed_again(tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = made(tmp_path / "set")
    for _ in range(2):
        staged = stage(source, cache=cache, limit="1GB")
        with ended(staged):
            assert same(staged, source)
            folder = statistics(staged).folder
    assert main(["data", "replay", cache]) == 0
    path, *plans = capsys.readouterr().out.splitlines()
    assert path == f"{folder}/plans"
    first = "generation 0: 6.00 MB on localhost; read 6.00 MB, copied 0 B"
    assert plans == [first, first.replace("read 6.00 MB", "read 0 B")]
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(path).write_bytes(lines[0] + lines[1].replace(b'"holds":"', b'"holds":"AAAA'))
    assert main(["data", "replay", cache]) != 0
    assert "line 2" in capsys.readouterr().err
    clean(cache)
    assert not Path(path).exists()


def test_what_stays_arrives_in_an_epoch_of_data_larger_than_the_cache(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=8, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="16MB")
    with ended(staged):
        for index in EpochSampler(staged).cursor.indices[:50]:
            assert bytes(staged[index]) == staged_bytes(index, 100, 41_000)
        await_staged(staged)
        found = statistics(staged)
        assert source.manifest.nbytes / 3 < found.wanted_bytes == found.held_bytes


def test_each_epoch_has_the_order_that_suits_the_caches_of_then(tmp_path: Path, cache: str) -> None:
    """A cache that becomes too small changes the next epoch; the one under way keeps its order, in another job, too."""
    source = made(tmp_path / "set", files=8, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        layout = staged.layout
        assert isinstance(layout, StagedLayout)
        orders = [layout.order(800, 0, epoch) for epoch in (0, 1)]
        assert [order.name for order in orders] == ["window-1:8", "exact-1"]
        layout._plan_generation(1, [HostEntry("localhost", 16_000_000, [])], ("localhost",))
        assert layout.name == "arrival-1:8"
        assert list(layout.order(800, 0, 1)) == list(orders[1])
        assert all(bytes(staged[index]) == staged_bytes(index, 100, 41_000) for index in orders[1][:40].tolist())
        assert statistics(staged).shared_bytes <= source.manifest.nbytes + 40 * 41_000  # rows, and not whole pieces
        assert layout.order(800, 0, 2).name == "window-1:2"
        assert layout.name == "stream-1:2"
        layout.adopt("arrival-1:8")
        assert list(layout.order(800, 0, 1)) == list(orders[1])
        layout.adopt("stream-1:8:4")
        assert (layout.name, layout.order(800, 0, 5).name) == ("stream-1:8:4", "window-1:8")
        assert layout.order(800, 0, 6).name == "window-1:2"
        for name in ("stream-1", "stream-1:2:3:4", "stream-1:x", "stream-9:2"):
            with pytest.raises(UsageError, match="saved in the order"):
                layout.adopt(name)


def test_a_flipped_bit_in_the_cache_is_found_and_healed(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        assert same(staged, source)
        flip(piece_file(staged, 0), 123_456)
        assert same(staged, source)
        assert statistics(staged).healed == 1
        store_of(staged).close()
        flip(piece_file(staged, 0).with_suffix(".sums"), 20)
        assert same(staged, source)
        store_of(staged).close()
        os.truncate(piece_file(staged, 1), 1000)
        assert same(staged, source)
        store_of(staged).close()
        for path in Path(statistics(staged).folder).iterdir():
            path.unlink()  # by a program that cleans /tmp
        assert same(staged, source)
        assert statistics(staged).held_bytes == source.manifest.nbytes


def test_a_flipped_bit_is_found_in_a_batch_that_is_read_by_one_call(tmp_path: Path, cache: str) -> None:
    (tmp_path / "set").mkdir()
    rows = np.random.default_rng(0).integers(0, 255, (64, 5000), np.uint8)
    np.save(tmp_path / "set" / "x.npy", rows)
    staged: Any = stage(arrays(tmp_path / "set"), cache=cache, limit="1GB")
    with ended(staged):
        assert all((staged[index] == row).all() for index, row in enumerate(rows))
        into = np.zeros((4, 5000), np.uint8)
        for wrong in (None, 17):
            if wrong is not None:
                flip(piece_file(staged, 0), 128 + 5000 * wrong + 99)
            assert staged.read_batch([3, 17, 60, 17], [into])
            assert (into == rows[[3, 17, 60, 17]]).all()
            assert statistics(staged).healed == (wrong is not None)


def test_a_killed_stager_is_started_again_and_nothing_is_lost(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=8)
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        for index in range(0, len(source), 40):
            if index % 200 == 0:
                kill_stager(staged)
                store_of(staged).close()
            assert bytes(staged[index]) == bytes(source[index])
        assert same(staged, source)
        kill_stager(staged)
        assert statistics(staged).held_bytes == source.manifest.nbytes
        assert statistics(staged).shared_bytes == 0
