"""Staging by a real stager on one host: each byte once, healed bits, a killed stager. More of it is nightly."""

from __future__ import annotations

import copy
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.cli import main
from farandole.data import arrays
from farandole.data.planning.order import ExactOrder, WindowOrder
from farandole.data.staging.cache import clean
from farandole.data.staging.layout import StagedLayout
from farandole.data.staging.progress import await_staged
from farandole.data.staging.protocol import HostEntry
from farandole.data.staging.stage import stage
from farandole.data.staging.staged_files import StagedFiles
from farandole.data.storage.pieces import Pieces
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.errors import DataError, UsageError
from tests.support.data.staging_source import (
    ended,
    flip,
    kill_stager,
    made,
    piece_file,
    same,
    staged_bytes,
    stager_of,
    stagers,
    statistics,
    store_of,
    until_gone,
    vanish,
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


def test_a_misspelt_folder_is_not_cleaned_and_a_list_is_not_staged(
    tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "clean", cache]) != 0
    assert f"{cache} does not exist: give cache= of a job" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"a list cannot be staged, .* give what a reader returns"):
        stage([1, 2, 3], cache=cache)  # type: ignore[type-var]
    assert not os.path.exists(cache)


def test_the_least_limit_is_named_by_a_job_and_by_a_plan_and_is_enough(
    tmp_path: Path, cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made(tmp_path / "set", files=1, samples=10, nbytes=1000)
    least = source.manifest.nbytes  # one piece, so not twice its size
    with pytest.raises(DataError, match=f"room for 1000 bytes .*: give limit={least} or more"):
        stage(source, cache=cache, limit=1000)
    assert main(["data", "plan", source.manifest.root, "--hosts", "1", "--limit", "1000"]) == 0
    assert (
        f"a job refuses this limit, as a cache needs room for two pieces: give {least} or more"
        in capsys.readouterr().out
    )
    staged = stage(source, cache=cache, limit=least)
    with ended(staged):
        assert same(staged, source)


def test_what_stays_arrives_in_an_epoch_of_data_larger_than_the_cache(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=8, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="16MB")
    with ended(staged):
        for index in EpochSampler(staged).cursor.indices[:50]:
            assert bytes(staged[index]) == staged_bytes(index, 100, 41_000)
        await_staged(staged)
        found = statistics(staged)
        assert source.manifest.nbytes / 3 < found.wanted_bytes == found.held_bytes


def test_reads_in_another_order_than_that_of_a_sampler_cost_rows_and_not_pieces(tmp_path: Path, cache: str) -> None:
    """As those of a subset of the data, or of another worker that is far behind."""
    source = made(tmp_path / "set", files=4, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="8MB")
    behind = source.on(StagedFiles(store_of(staged).manifest, store_of(staged).link))
    with ended(staged):
        assert all(bytes(staged[index]) == staged_bytes(index, 100, 41_000) for index in ExactOrder(400, 3)[:].tolist())
        assert statistics(staged).shared_bytes <= 2 * source.manifest.nbytes  # 6 times, if a piece is read for each row
        for batch in (sampler := EpochSampler(staged)).cursor.batches(global_batch_size=10):
            sampler.cursor.hand_out(batch)
            assert len([staged[index] for index in sampler.cursor.own_indices()[::2]]) == 5
            sampler.cursor.advance(batch.samples)
        before = statistics(staged).shared_bytes
        assert all(len(behind[index]) == 41_000 for index in list(sampler.cursor.indices[1::2]))
        behind.store.close()
        assert statistics(staged).shared_bytes - before <= source.manifest.nbytes


def test_each_epoch_has_the_order_that_suits_the_caches_of_then(tmp_path: Path, cache: str) -> None:
    """A cache that becomes too small changes the next epoch; the one under way keeps its order, in another job, too."""
    source = made(tmp_path / "set", files=8, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        layout = staged.layout
        assert isinstance(layout, StagedLayout)
        orders, name = [layout.order(800, 0, epoch) for epoch in (0, 1)], layout.name
        assert [order.name for order in orders] == ["window-1:8", "exact-1"]
        layout._plan_generation(1, [HostEntry("localhost", 16_000_000, [])], ("localhost",))
        assert list(layout.order(800, 0, 1, name)) == list(orders[1])
        assert all(bytes(staged[index]) == staged_bytes(index, 100, 41_000) for index in orders[1][:40].tolist())
        assert statistics(staged).shared_bytes <= source.manifest.nbytes + 40 * 41_000  # rows, and not whole pieces
        assert layout.order(800, 0, 2).name == "window-1:2"
        assert layout.name == f"stream-1:2:1:{store_of(staged).link.config.most_bytes}"
        assert list(layout.order(800, 0, 1, "arrival-1:8")) == list(orders[1])
        assert layout.order(800, 0, 5, "stream-1:8:4:4194304").name == "window-1:8"
        for name in ("stream-1", "stream-1:2:3", "stream-1:2:3:4:5", "stream-1:x", "stream-9:2"):
            with pytest.raises(UsageError, match="saved in the order"):
                layout.check(name)


def test_a_rank_that_joins_between_epochs_has_the_order_of_the_others(tmp_path: Path, cache: str) -> None:
    """It gets the state of the epoch that ends, in its order; the next epoch is ordered by the caches of then."""
    staged = stage(made(tmp_path / "set", files=8, samples=100, nbytes=41_000), cache=cache, limit="1GB")
    with ended(staged):
        joining = copy.copy(staged)
        joining.layout = StagedLayout(store_of(staged), 8, 10**9)
        old, new = EpochSampler(staged), EpochSampler(joining)
        old.cursor.hand_out(next(old.cursor.batches(global_batch_size=800)))
        assert len(old.cursor.own_indices()) == 800
        old.cursor.advance(800)
        new.load_state_dict(old.state_dict())
        for each in (staged, joining):
            assert isinstance(each.layout, StagedLayout)
            each.layout._plan_generation(1, [HostEntry("localhost", 16_000_000, [])], ("localhost",))
        for sampler in (old, new):
            sampler.set_epoch(1)
        assert list(old.cursor.indices) == list(new.cursor.indices)


def test_two_samplers_of_staged_data_have_orders_of_their_own(tmp_path: Path, cache: str) -> None:
    staged = stage(made(tmp_path / "set", files=8, samples=100, nbytes=41_000), cache=cache, limit="1GB")
    with ended(staged):
        training = EpochSampler(staged)
        training.set_epoch(1)
        order = list(training.cursor.indices)
        assert isinstance(staged.layout, StagedLayout)
        staged.layout._plan_generation(1, [HostEntry("localhost", 16_000_000, [])], ("localhost",))
        assert list(EpochSampler(staged, seed=1).cursor.indices) != order
        resumed = EpochSampler(staged)
        resumed.load_state_dict(training.state_dict())
        assert list(resumed.cursor.indices) == order


def test_samplers_of_staged_data_that_take_turns_read_no_piece_for_each_row(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=4, samples=100, nbytes=41_000)
    staged = stage(source, cache=cache, limit="8MB")
    with ended(staged):
        samplers = [EpochSampler(staged, seed=seed) for seed in (1, 2)]
        for batch in samplers[0].cursor.batches(global_batch_size=10):
            for sampler in samplers:
                sampler.cursor.hand_out(batch)
                assert all(len(staged[index]) == 41_000 for index in sampler.cursor.own_indices())
                sampler.cursor.advance(batch.samples)
        assert statistics(staged).shared_bytes <= 2.5 * source.manifest.nbytes


def test_an_epoch_goes_on_in_its_order_with_another_limit(tmp_path: Path, cache: str) -> None:
    """The limit says how large pieces are, and they say which samples a window has."""
    source = made(tmp_path / "set", files=2, samples=100, nbytes=82_000)
    found: list[list[int]] = []
    state: dict[str, Any] = {}
    for limit in ("1GB", "250MB"):
        staged = stage(source, cache=cache, limit=limit, window=1)
        with ended(staged):
            sampler = EpochSampler(staged)
            if state:
                sampler.load_state_dict(state)
            found.append(list(sampler.cursor.indices))
            state = sampler.state_dict()
            assert all(bytes(staged[index]) == staged_bytes(index, 100, 82_000) for index in (0, 99, 100, 199))
            first = WindowOrder(Pieces.of(source.manifest, 15_625_000).sample_bounds()[0], 1)  # 1 GB / 64
            sampler.load_state_dict({**state, "order": "arrival-1:1"})  # of a version whose states did not say it
            assert limit == "250MB" or list(sampler.cursor.indices) == list(first)
    assert found[0] == found[1] != list(first)


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


def test_the_folder_of_a_killed_job_is_taken_over_and_that_of_a_living_one_is_not(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    killed = stage(source, cache=cache, limit="1GB")
    assert same(killed, source)
    folder, old = statistics(killed).folder, stager_of(killed)
    vanish(killed)
    again = stage(source, cache=cache, limit="1GB")
    with ended(again):
        assert same(again, source)
        assert (statistics(again).folder, statistics(again).shared_bytes) == (folder, 0)
        assert old not in stagers(cache)
        third = stage(source, cache=cache, limit="1GB")
        with ended(third):
            assert same(third, source)
            assert statistics(third).folder != folder


def test_copies_of_a_killed_job_are_taken_over_too(tmp_path: Path, cache: str) -> None:
    source, mirror = made(tmp_path / "set"), str(tmp_path / "copies")
    killed = stage(source, cache=cache, mirror=mirror)
    await_staged(killed)
    vanish(killed)
    again = stage(source, cache=cache, mirror=mirror)
    await_staged(again)
    assert statistics(again).shared_bytes == 0
    with pytest.raises(DataError, match="another job copies into"):
        await_staged(stage(source, cache=cache, mirror=mirror))
    left = stagers(mirror)
    store_of(again).link.close()
    until_gone(left)


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
