"""Staging by real stagers: each byte once, what is damaged or killed or full, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.loading.batches import Batches
from farandole.data.staging import stage as stage_module
from farandole.data.staging.checksums import checksums_of
from farandole.data.staging.layout import StagedLayout
from farandole.data.staging.stage import stage
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import list_files
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.errors import DataError
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import init, shutdown
from farandole.testing.harness import RanksFailedError
from farandole.testing.ledger import read
from farandole.testing.rank import RankContext
from tests.support.data.staging_source import (
    Raw,
    end,
    ended,
    flip,
    kill_stager,
    made,
    piece_file,
    same,
    source_of,
    stager_of,
    stagers,
    statistics,
    store_of,
)
from tests.support.paths import SUPPORT
from tests.support.waiting import until
from workbench.jobs import run_job

MIB = 2**20
ELASTIC = SUPPORT / "data" / "staging_elastic_worker.py"


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


def test_a_limit_below_two_pieces_is_refused_with_the_least_that_works(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=3, samples=100, nbytes=41_000)
    with pytest.raises(DataError, match=r"room for 500000 bytes .* limit=(\d+) or more") as caught:
        stage(source, cache=cache, limit="500kB")
    least = int(str(caught.value).partition("limit=")[2].split()[0])
    until(lambda: not stagers(tmp_path), "for the refused stager to end")
    staged = stage(source, cache=cache, limit=least)
    with ended(staged):
        assert same(staged, source)


def test_a_cache_smaller_than_the_data_stays_below_its_limit(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=8, samples=100, nbytes=41_000)  # 8 pieces of 4.1 MB
    limit = 21_000_000
    staged = stage(source, cache=cache, limit=limit)
    with ended(staged):
        most = 0
        sampler = EpochSampler(staged)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen = []
            for index in sampler.cursor.indices:
                seen.append(index)
                if len(seen) % 10 == 0:
                    assert bytes(staged[index]) == bytes(source[index])
                    most = max(most, used(Path(statistics(staged).folder)))
            assert sorted(seen) == list(range(len(source)))
        assert 8_000_000 < most <= limit
        assert isinstance(staged.layout, StagedLayout)
        plan = staged.layout.plan
        assert plan is not None
        least = plan.least_bytes(3)
        assert statistics(staged).shared_bytes <= 1.02 * plan.shared_bytes(3)
        assert least <= plan.shared_bytes(3)


def used(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if not path.name.endswith(".sums") else 0
    return total


def test_what_a_failure_of_the_host_leaves_is_not_believed(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    assert same(staged, source)
    first, second, folder = piece_file(staged, 0), piece_file(staged, 1), Path(statistics(staged).folder)
    end(staged)
    size = first.stat().st_size
    os.truncate(first, 0)
    os.truncate(first, size)  # its name was written, its bytes were not
    second.with_suffix(".sums").unlink()
    (folder / "00000003.7.new").write_bytes(b"half")
    (folder / "ffffffff").write_bytes(b"a piece of something else")
    next(folder.parent.glob("*.index")).write_bytes(b"")
    again = stage(source, cache=cache, limit="1GB")
    with ended(again):
        assert same(again, source)
        assert not list(folder.glob("*.new"))


def indexed(source: Raw) -> Raw:
    """The same samples, with checksums as an index has them."""
    return Raw(source.manifest.with_sums(checksums_of(source.manifest, Pieces.of(source.manifest), source.store)))


def flip_unseen(path: Path, offset: int) -> None:
    """Flip a bit as a disk does: nobody has written."""
    status = path.stat()
    flip(path, offset)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """A stager that starts in the block cannot write files of more than a megabyte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_full", [False, True])
def test_a_flipped_bit_at_the_source_is_named_where_the_index_has_sums(
    tmp_path: Path, cache: str, is_full: bool
) -> None:
    source = made(tmp_path / "set", files=10)
    with_sums = indexed(source)
    path = Path(source.manifest.paths[8])
    flip_unseen(path, 500_000)
    with full_disk() if is_full else contextlib.nullcontext():
        staged = stage(with_sums, cache=cache, limit="1GB")
    with ended(staged):
        assert same(staged, source, [0, 249])
        assert (statistics(staged).held_bytes == 0) == is_full
        with pytest.raises(
            DataError, match=rf"{path.parent}.* from byte 0 on\) cannot be had .* checksum in the index"
        ):
            staged[499]


def test_a_damaged_piece_is_skipped_and_a_file_that_is_gone_is_not(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=4, samples=2, nbytes=3_000_000)  # a piece is a file
    with_sums = indexed(source)
    flip_unseen(Path(source.manifest.paths[1]), 500_000)
    staged = stage(with_sums, cache=cache, limit="1GB")
    with ended(staged):
        batches = Batches(staged, 2, shuffle=False, on_corrupt="skip")
        assert [len(batch) for batch in batches] == [2, 1, 2, 2]  # one of another file, of weight 0
        assert batches.sampler.cursor.in_flight[1].left_out == (2, 2)
    shutil.rmtree(cache)
    Path(source.manifest.paths[2]).unlink()
    staged = stage(with_sums, cache=cache, limit="1GB")
    with ended(staged), pytest.raises(DataError, match=r"^sample [45] .*No such file"):
        list(Batches(staged, 2, shuffle=False, on_corrupt="skip"))


def test_a_cache_from_before_the_index_is_compared_with_it(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    with_sums = indexed(source)
    path = Path(source.manifest.paths[0])
    flip_unseen(path, 500_000)
    early = stage(source, cache=cache, limit="100GB")  # the index cuts pieces of 64 MiB
    with ended(early):
        assert same(early, source), "nobody can know"
    flip_unseen(path, 500_000)
    staged = stage(with_sums, cache=cache, limit="1GB")
    with ended(staged):
        assert statistics(staged).held_bytes == source.manifest.nbytes
        assert same(staged, source)
        assert statistics(staged).healed == 1


def test_no_library_gets_the_path_of_what_may_go_again(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=8, samples=100, nbytes=42_000)
    paths = source.manifest.paths[:]
    for limit, is_stream in (("2GB", False), ("22MB", True)):  # pieces of whole files, and of parts
        staged = stage(source, cache=cache, limit=limit)
        with ended(staged):
            found = [store_of(staged).local_path(path) for path in paths]
            assert all((each is None) == is_stream for each in found)


@pytest.mark.parametrize("change", ["grown", "shorter", "other", "gone"])
def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, cache: str, change: str) -> None:
    source = made(tmp_path / "set", files=1)
    path = tmp_path / "set" / "000.bin"
    if change == "grown":
        with path.open("ab") as file:
            file.write(b"more")
    elif change == "shorter":
        os.truncate(path, 1000)
    elif change == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size))
        os.utime(path, ns=(1, 1))
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        words = (
            "is truncated, or has changed"
            if change == "shorter"
            else "No such file"
            if change == "gone"
            else "changed since"
        )
        with pytest.raises(DataError, match=words):
            staged[0]


def test_two_jobs_use_one_cache_at_the_same_time(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    one = stage(source, cache=cache, limit="1GB")
    with ended(one):
        assert same(one, source)
        other = stage(source, cache=cache, limit="1GB")
        with ended(other):
            assert statistics(other).folder != statistics(one).folder
            assert same(other, source)
            assert statistics(other).shared_bytes == 0, "it could have linked all pieces"
            flip(piece_file(other, 0), 777)
            assert same(other, source)
            assert same(one, source)
            assert statistics(other).healed == 1


def test_jobs_with_other_pieces_do_not_mix_them_up(tmp_path: Path, cache: str) -> None:
    # Pieces of 4 MiB at most and of 64 differ in number, and some of them not in size.
    source = made(tmp_path / "set", files=3, samples=1, nbytes=4_194_304)
    (tmp_path / "set" / "000.bin").write_bytes(os.urandom(8 * MIB))
    entries = list_files(tmp_path / "set")
    field = Field.regular([0, 0, 1, 2], [1] * 4, [0, 4 * MIB, 0, 0], [4 * MIB] * 4, [4 * MIB] * 4)
    source = Raw(Manifest.of("raw", str(tmp_path / "set"), entries, [field]))
    large = stage(source, cache=cache, limit="100GB")
    with ended(large):
        assert same(large, source)
        small = stage(source, cache=cache, limit="200MB")
        with ended(small):
            assert len(store_of(small).pieces) != len(store_of(large).pieces)
            assert same(small, source)


def test_a_full_disk_is_no_matter_of_the_user(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=4, samples=100, nbytes=41_000)
    with full_disk():
        staged = stage(source, cache=cache, limit="4GB")
    with ended(staged):
        assert same(staged, source)
        assert statistics(staged).held_bytes == 0


def test_one_sample_that_is_larger_than_a_piece(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=1, samples=1, nbytes=20 * MIB)
    staged = stage(source, cache=cache, limit="200MB")
    with ended(staged):
        assert store_of(staged).pieces.sizes.tolist() == [20 * MIB]
        assert same(staged, source)


@pytest.mark.parametrize("sizes", [[], [0, 0], [0, 1, 0]])
def test_data_without_bytes(tmp_path: Path, cache: str, sizes: list[int]) -> None:
    (tmp_path / "set").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "set" / f"{number}").write_bytes(b"x" * size)
    entries = list_files(tmp_path / "set") if sizes else []
    source = Raw(
        Manifest.of("raw", str(tmp_path / "set"), entries, [Field.whole_files([each.size for each in entries])])
    )
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        assert [len(staged[index]) for index in range(len(staged))] == sizes
        assert sorted(EpochSampler(staged).cursor.indices) == list(range(len(sizes)))


def test_names_that_are_no_unicode(tmp_path: Path, cache: str) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for name in (b"a\xff.bin", b"b\n.bin"):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(name * 100)
    entries = list_files(folder)
    source = Raw(Manifest.of("raw", str(folder), entries, [Field.whole_files([each.size for each in entries])]))
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        assert bytes(staged[0]) == b"a\xff.bin" * 100
        assert bytes(staged[1]) == b"b\n.bin" * 100
    os.unlink(os.path.join(os.fsencode(folder), b"a\xff.bin"))
    shutil.rmtree(cache)
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged), pytest.raises(DataError, match=r"a\\udcff.bin"):
        staged[0]


def test_samples_in_any_order(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set", files=4)
    chance = np.random.default_rng(3)
    offsets, sizes = chance.integers(0, 900_000, 80), chance.integers(0, 90_000, 80)
    field = Field.listed([3, 0, 2, 1], [20] * 4, offsets, sizes)
    listed = Raw(Manifest.of("raw", source.manifest.root, list_files(tmp_path / "set"), [field]))
    staged = stage(listed, cache=cache, limit="1GB")
    with ended(staged):
        assert same(staged, listed)
        assert sorted(EpochSampler(staged).cursor.indices) == list(range(80))


def test_threads_and_forks_read_at_the_same_time(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        wrong: list[BaseException] = []

        def read(seed: int) -> None:
            try:
                assert same(staged, source, np.random.default_rng(seed).integers(0, len(source), 20).tolist())
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        pid = os.fork()
        if not pid:
            is_right = False
            try:
                is_right = same(staged, source, range(0, 300, 7))
                store_of(staged).link.close()
            finally:
                os._exit(0 if is_right else 1)
        for thread in threads:
            thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not wrong
        assert stager_of(staged), "the good-bye of a fork is not its parent's"


def test_what_is_no_request_ends_nobody(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        pid, name = stager_of(staged), f"\0{store_of(staged).link.config.name}"
        for text in (b"", b"x", struct.pack("<II", 2**31, 2**31), struct.pack("<II", 5, 0) + b"12345", os.urandom(500)):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(name)
                stranger.sendall(text)
                stranger.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(100) == b""
        from farandole.data.staging.protocol import Assign, Damaged, FirstUses, HostEntry, Need, Opened

        link = store_of(staged).link
        for wrong in (
            Need(10**9, 0, 1),
            Need(-1, 0, 1),
            Need(0, 5, 2),
            Need(0, 0, 10**9),
            Damaged(10**9),
            Opened(10**9),
            FirstUses(b"123"),
            FirstUses(struct.pack("<i", 10**6)),
            Assign(9, [HostEntry("other", 5, [])]),
        ):
            with contextlib.suppress(DataError):
                link.request(wrong)
        assert same(staged, source)
        assert stager_of(staged) == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_gets_nothing(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    staged = stage(source, cache=cache, limit="1GB")
    with ended(staged):
        name = f"\0{store_of(staged).link.config.name}"
        pid = os.fork()
        if not pid:
            is_refused = False
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect(name)
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        stranger.sendall(struct.pack("<II", 1, 0) + b"x")
                        is_refused = stranger.recv(100) == b""
                        os._exit(0 if is_refused else 1)
                    is_refused = True
            finally:
                os._exit(0 if is_refused else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert same(staged, source, [0, 299])
        assert Path(cache, "farandole-cache-0").stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_is_said_in_the_users_words(tmp_path: Path) -> None:
    source = made(tmp_path / "set", files=1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="give a folder of this host"):
        stage(source, cache=str(tmp_path / "file"), limit="1GB")
    home = tmp_path / "open" / f"farandole-cache-{os.geteuid()}"
    home.mkdir(parents=True)
    home.chmod(0o777)
    with pytest.raises(DataError, match="others may write to it: give another cache="):
        stage(source, cache=str(tmp_path / "open"), limit="1GB")
    home.rmdir()
    home.symlink_to(tmp_path / "set")
    with pytest.raises(DataError, match="belongs to another user"):
        stage(source, cache=str(tmp_path / "open"), limit="1GB")


# -- jobs --------------------------------------------------------------------------------------------------------------


def epochs_on(member: RankContext, folder: str, cache: str, kill: bool) -> Any:
    """Two epochs on staged data; returns the samples of each step, and what the stager has read."""
    init()
    try:
        source = source_of(Path(folder), 50, 20_000)
        staged = stage(source, cache=cache, limit="1GB")
        sampler = EpochSampler(staged)
        taken: list[list[int]] = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for batch in list(sampler.cursor.batches(global_batch_size=32)):
                sampler.cursor.hand_out(batch)
                mine = sampler.cursor.own_indices()
                assert same(staged, source, mine)
                every = allgather_object(mine, name="mine")
                taken.append(sorted(index for each in every for index in each))
                sampler.cursor.advance(batch.samples)
                if kill and member.rank == 1 and len(taken) in (2, 12):
                    kill_stager(staged)
        allgather_object(0, name="all have read")
        return taken, statistics(staged).shared_bytes
    finally:
        shutdown()
        stage_module._say_good_bye()


def test_ranks_of_a_host_share_one_stager(tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    found = run_job(epochs_on, 3, str(tmp_path / "set"), cache, False)
    assert {nbytes for _, nbytes in found} == {source.manifest.nbytes}
    steps = found[0][0]
    assert all(taken == steps for taken, _ in found)
    for epoch in (steps[:10], steps[10:]):
        assert sorted(index for step in epoch for index in step) == list(range(300))
    until(lambda: not stagers(tmp_path), "for stagers to end with their workers")
    warm = run_job(epochs_on, 2, str(tmp_path / "set"), cache, True)
    assert warm[0] == (steps, 0)
    until(lambda: not stagers(tmp_path), "for stagers to end with their workers")


def resumed(member: RankContext, folder: str, cache: str, state: dict[str, Any], steps: int) -> Any:
    init()
    try:
        staged = stage(source_of(Path(folder), 50, 20_000), cache=cache, limit="1GB")
        sampler = EpochSampler(staged)
        if state:
            sampler.load_state_dict(state)
        taken: list[int] = []
        while steps:
            for batch in list(sampler.cursor.batches(global_batch_size=32))[:steps]:
                steps -= 1
                sampler.cursor.hand_out(batch)
                every = allgather_object(sampler.cursor.own_indices(), name="mine")
                taken += sorted(index for each in every for index in each)
                sampler.cursor.advance(batch.samples)
            if steps:
                sampler.set_epoch(sampler.epoch + 1)
        return taken, sampler.state_dict()
    finally:
        shutdown()
        stage_module._say_good_bye()


def test_a_state_goes_on_at_another_number_of_ranks(tmp_path: Path, cache: str) -> None:
    made(tmp_path / "set")
    folder = str(tmp_path / "set")
    [[dull, _]] = run_job(resumed, 1, folder, cache, {}, 20)
    state: dict[str, Any] = {}
    committed: list[int] = []
    for size, steps in ((2, 3), (3, 9), (1, 4), (2, 4)):  # in the middle of epoch 0 and of epoch 1
        found = run_job(resumed, size, folder, cache, state, steps)
        committed += found[0][0]
        state = found[0][1]
    assert committed == dull
    until(lambda: not stagers(tmp_path), "for stagers to end with their workers")


@pytest.mark.parametrize(
    ("files", "limits", "words"),
    [((6, 5), ("1GB", "1GB"), "stages other files than rank 0"), ((6, 6), ("1GB", "2GB"), "give one limit= to all")],
)
def test_ranks_that_stage_otherwise_are_told(
    tmp_path: Path, cache: str, files: tuple[int, int], limits: tuple[str, str], words: str
) -> None:
    """Other files, or the same in pieces of another size: then a rank would have another order."""
    for number, count in enumerate(files):
        made(tmp_path / f"set{number if len({*files}) > 1 else 0}", files=count)

    def program(member: RankContext) -> None:
        init()
        try:
            folder = tmp_path / f"set{member.rank if len({*files}) > 1 else 0}"
            stage(source_of(folder, 50, 20_000), cache=cache, limit=limits[member.rank])
        finally:
            shutdown()
            stage_module._say_good_bye()

    with pytest.raises(RanksFailedError, match=words):
        run_job(program, 2)
    until(lambda: not stagers(tmp_path), "for stagers to end with their workers")


def test_each_sample_is_committed_once_though_a_worker_is_killed(launch: Any, tmp_path: Path, cache: str) -> None:
    source = made(tmp_path / "set")
    out = tmp_path / "out"
    out.mkdir()
    options = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"]
    run = launch(2, ELASTIC, options=options, arguments=[str(tmp_path / "set"), cache, str(out)]).ok()
    assert (out / "killed").exists()
    assert not read(out).problems(len(source), epochs=2)
    assert {int(line.rpartition(" ")[2]) for line in run.lines() if line.startswith("rank ")} == {
        source.manifest.nbytes
    }
    until(lambda: not stagers(tmp_path), "for stagers to end with the job")
