"""The folder of a cache: locked, marked, swept, and never anybody else's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from farandole.data.staging.cache import MARK, CacheFolder, clean, home_of, keep_index
from farandole.data.staging.checksums import Checksums
from farandole.errors import DataError
from tests.support.data.staging_sets import manifest_of

BOUNDS = np.array([0, 1000, 2500])
DIGEST = "0123456789abcdef0123456789abcdef-400000"


def fill(cache: CacheFolder, piece: int, seed: int = 1) -> bytes:
    """Write a piece; returns its bytes."""
    data = np.random.default_rng(seed).bytes(2500)
    sums = Checksums.unknown(BOUNDS)
    sums.note(0, 2, memoryview(data))
    writer = cache.begin(piece, sums, 1)
    writer.write(0, memoryview(data)[:1000])
    writer.write(1, memoryview(data)[1000:])
    writer.finish()
    return data


def content(cache: CacheFolder, piece: int) -> bytes:
    found = cache.open(piece, BOUNDS)
    assert found is not None
    buffer = bytearray(2500)
    found.read_blocks(0, 2, memoryview(buffer))
    assert found.checksums.verify(0, 2, memoryview(buffer))
    return bytes(buffer)


def test_a_piece_is_there_when_it_is_whole(tmp_path: Path) -> None:
    cache = CacheFolder.acquire(str(tmp_path), DIGEST)
    sums = Checksums.unknown(BOUNDS)
    writer = cache.begin(7, sums, 1)
    assert (cache.held(), cache.open(7, BOUNDS)) == (set(), None)
    writer.cancel()
    data = fill(cache, 3)
    assert (cache.held(), content(cache, 3)) == ({3}, data)
    assert sorted(os.listdir(cache.folder)) == [MARK, "00000003", "00000003.sums"]
    assert cache.open(3, np.array([0, 1000, 2501])) is None
    reader = cache.open(3, BOUNDS)
    assert reader is not None
    assert not reader.is_dropped()
    cache.drop(3)
    assert (cache.held(), cache.has(3), reader.is_dropped()) == (set(), False, True)
    buffer = bytearray(2500)
    reader.read_blocks(0, 2, memoryview(buffer))
    assert bytes(buffer) == data, "whoever reads it reads on"
    cache.close()


def test_a_second_job_gets_a_folder_beside_it_and_links(tmp_path: Path) -> None:
    one = CacheFolder.acquire(str(tmp_path), DIGEST)
    data = fill(one, 3)
    other = CacheFolder.acquire(str(tmp_path), DIGEST)
    assert other.folder == one.folder.with_name(f"{DIGEST}.1")
    assert other.link(3)
    assert not other.link(4)
    one.drop(3)
    assert content(other, 3) == data
    longer = CacheFolder.acquire(str(tmp_path), f"{DIGEST}0")  # another size of pieces, whose name begins alike
    fill(longer, 5)
    assert not one.link(5)
    for each in (one, other, longer):
        each.close()
    again = CacheFolder.acquire(str(tmp_path), DIGEST)
    assert again.folder == one.folder
    again.close()


def test_what_was_half_written_is_swept_and_foreign_files_are_not(tmp_path: Path) -> None:
    cache = CacheFolder.acquire(str(tmp_path), DIGEST)
    foreign = ["notes.txt", "00000001.bak", "0000000g", "000000001", ".hidden"]
    for name in [*foreign, "00000001.2.new", "00000002.sums.9.new"]:
        (cache.folder / name).write_bytes(b"x")
    fill(cache, 4)
    cache.close()
    CacheFolder.acquire(str(tmp_path), DIGEST).close()
    assert sorted(os.listdir(cache.folder)) == sorted([MARK, "00000004", "00000004.sums", *foreign])
    assert clean(str(tmp_path)) > 0
    assert sorted(os.listdir(cache.folder)) == sorted(foreign)
    assert clean(str(tmp_path)) == 0
    assert sorted(os.listdir(cache.folder)) == sorted(foreign)


def test_clean_deletes_what_no_job_uses(tmp_path: Path) -> None:
    manifest = manifest_of([5])
    name, mapped = keep_index(str(tmp_path), manifest)
    index = Path(name)
    used = CacheFolder.acquire(str(tmp_path), f"{manifest.digest}-400000")
    idle = CacheFolder.acquire(str(tmp_path), DIGEST)
    fill(used, 1)
    fill(idle, 1)
    idle.close()
    foreign = home_of(str(tmp_path)) / "mine"
    foreign.mkdir()
    (foreign / "00000001").write_bytes(b"without a mark")
    (index.parent / f".{index.name}.77.new").write_bytes(b"half an index")
    assert clean(str(tmp_path)) > 0
    assert not idle.folder.exists()
    assert (used.held(), index.exists(), os.listdir(foreign)) == ({1}, True, ["00000001"])
    assert not list(index.parent.glob(".*.new"))
    used.close()
    clean(str(tmp_path))
    assert not used.folder.exists()
    assert index.exists(), "somebody has it mapped, whose stager may be yet to start"
    del mapped
    clean(str(tmp_path))
    assert not index.exists()


def test_an_index_that_is_damaged_is_written_again(tmp_path: Path) -> None:
    manifest = manifest_of([5, 6])
    path = Path(keep_index(str(tmp_path), manifest)[0])
    whole = path.read_bytes()
    for wrong in (b"", whole[:-1], bytes(len(whole)), manifest_of([7]).encode()):
        path.write_bytes(wrong)
        assert keep_index(str(tmp_path), manifest)[0] == str(path)
        assert path.read_bytes() == whole


def test_an_index_with_checksums_is_another_file(tmp_path: Path) -> None:
    manifest = manifest_of([5, 6])
    keep_index(str(tmp_path), manifest)
    found = [keep_index(str(tmp_path), manifest.with_sums(np.array([value], np.uint64)))[1] for value in (7, 8)]
    assert [each.sum_of(0) for each in found] == [7, 8]


def test_the_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / f"farandole-cache-{os.geteuid()}"
    home.mkdir()
    for mode in (0o770, 0o702):
        home.chmod(mode)
        with pytest.raises(DataError, match="others may write to it"):
            home_of(str(tmp_path))
    home.chmod(0o755)
    assert home_of(str(tmp_path)) == home
    shutil.rmtree(home)
    (tmp_path / "elsewhere").mkdir()
    home.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="belongs to another user"):
        home_of(str(tmp_path))
    assert os.listdir(tmp_path / "elsewhere") == []
    home.unlink()
    home.mkdir()
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    (tmp_path / f"farandole-cache-{os.geteuid()}").mkdir()
    with pytest.raises(DataError, match="belongs to another user"):
        home_of(str(tmp_path))


def test_variables_that_are_not_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the variable is not set here"):
        home_of(f"{tmp_path}/$NO_SUCH_VARIABLE")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="give a folder of this host"):
        home_of(str(tmp_path / "file"))


def _take_and_leave(base: str, times: int) -> None:
    for _ in range(times):
        cache = CacheFolder.acquire(base, DIGEST)
        data = fill(cache, 1)
        assert content(cache, 1) == data
        cache.close()


def test_taking_and_cleaning_at_the_same_time(tmp_path: Path) -> None:
    takers = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                _take_and_leave(str(tmp_path), 200)
                code = 0
            finally:
                os._exit(code)
        takers.append(pid)
    codes: dict[int, int] = {}
    while len(codes) < len(takers):
        clean(str(tmp_path))
        pid, status = os.waitpid(-1, os.WNOHANG)
        codes |= {pid: status} if pid in takers else {}
    assert list(codes.values()) == [0, 0]
