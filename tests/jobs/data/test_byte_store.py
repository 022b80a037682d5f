"""Stores of bytes: one contract for files where they lie, behind URLs and in a cache."""

from __future__ import annotations

import errno
import io
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from farandole.data.formats.arrays import arrays
from farandole.data.formats.hdf5 import hdf5
from farandole.data.formats.source import Source
from farandole.data.loading.batches import Batches
from farandole.data.staging.stage import stage
from farandole.data.storage import byte_store, url_files
from farandole.data.storage.byte_store import Rows, SharedFiles
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import list_files
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.stores import store_for
from farandole.data.storage.url_files import UrlFiles
from farandole.errors import DataError
from tests.support.data.staging_source import Raw, ended

SIZE = 300_000
Made = list[Any]
"""A store, what makes a path of a name, and the bytes of a.bin; emptied at the end, as pytest keeps it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("set")
    (where / "a.bin").write_bytes(np.random.default_rng(1).bytes(SIZE))
    (where / "empty").write_bytes(b"")
    with h5py.File(where / "c.h5", "w") as file:
        file["x"] = np.arange(10_000).reshape(100, 100)
    return where


@pytest.fixture(params=["shared", "file", "memory", "staged"])
def made(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Made]:
    content = (folder / "a.bin").read_bytes()
    if request.param == "staged":
        entries = list_files(folder)
        manifest = Manifest.of("raw", str(folder), entries, [Field.whole_files([each.size for each in entries])])
        staged = stage(Raw(manifest), cache=str(tmp_path), limit="1GB")
        kept = [staged.store, lambda name: str(folder / name), content]
        with ended(staged):
            yield kept
        kept.clear()
        return
    prefix = {"shared": f"{folder}/", "file": f"file://{folder}/", "memory": "memory://set/"}[request.param]
    if request.param == "memory":
        import fsspec

        for each in folder.iterdir():
            fsspec.filesystem("memory").pipe(f"/set/{each.name}", each.read_bytes())
    store = store_for(prefix)
    yield [store, lambda name: f"{prefix}{name}", content]
    store.close()


def test_reads_what_is_there(made: Made) -> None:
    store, path, content = made
    assert store.size(path("a.bin")) == SIZE
    assert store.read(path("a.bin")) == content
    for offset, nbytes in ((0, 1), (17, 70_000), (SIZE - 1, 1), (SIZE, 0), (5, 0)):
        assert store.read(path("a.bin"), offset, nbytes) == content[offset : offset + nbytes]
    assert store.read(path("a.bin"), SIZE - 10) == content[-10:]
    assert (store.size(path("empty")), store.read(path("empty"))) == (0, b"")


def test_rows_are_read_by_one_call(made: Made) -> None:
    store, path, content = made
    offsets = np.random.default_rng(2).integers(0, SIZE - 1000, 20).tolist()
    for _ in range(2):  # the second time its files are open
        into = np.zeros((20, 1000), np.uint8)
        store.read_rows([path("a.bin")] * 20, offsets, Rows(into.reshape(-1).data, 1000))
        assert into.tobytes() == b"".join(content[offset : offset + 1000] for offset in offsets)
    whole = bytearray(2 * SIZE)
    store.read_rows([path("a.bin")] * 2, [0, 0], Rows(memoryview(whole), SIZE))
    assert whole == 2 * content
    for name, offset in (("a.bin", SIZE - 1), ("absent", 0)):
        with pytest.raises(DataError, match=name):
            store.read_rows([path("a.bin"), path(name)], [0, offset], Rows(memoryview(bytearray(4)), 2))


def test_what_is_not_there_is_named(made: Made) -> None:
    store, path, _ = made
    for offset, nbytes in ((SIZE - 1, 2), (SIZE, 1), (SIZE + 5, 10)):
        with pytest.raises(DataError, match=r"a\.bin"):
            store.read(path("a.bin"), offset, nbytes)
    with pytest.raises(DataError, match="absent"):
        store.size(path("absent"))
    with pytest.raises(DataError, match="absent"):
        store.read(path("absent"), 0, 1)


def test_a_file_object_is_what_libraries_take(made: Made) -> None:
    store, path, content = made
    with h5py.File(store.open(path("c.h5")), "r") as file:
        assert (file["x"][17] == np.arange(1700, 1800)).all()
    with store.open(path("a.bin")) as raw, io.BufferedReader(raw, 1000) as file:
        assert file.read(10) == content[:10]
        assert file.seek(-20, os.SEEK_END) == SIZE - 20
        assert file.read() == content[-20:]
        assert file.read(5) == b""
        assert file.seek(100) == 100
        assert file.read(50_000) == content[100:50_100]
    with store.open(path("a.bin")) as raw:
        assert raw.seek(SIZE + 5) == SIZE + 5
        assert raw.read(1) == b""
        for offset, whence in ((-1, os.SEEK_SET), (0, 9)):
            with pytest.raises(OSError, match="seek"):
                raw.seek(offset, whence)
        assert (raw.readable(), raw.seekable(), raw.writable()) == (True, True, False)


def test_a_local_path_has_the_same_bytes(made: Made) -> None:
    store, path, content = made
    found = store.local_path(path("a.bin"))
    assert found is None or Path(found).read_bytes() == content


def test_a_pickled_copy_reads_anew(made: Made) -> None:
    store, path, content = made
    store.read(path("a.bin"), 0, 10)
    again = pickle.loads(pickle.dumps(store))
    assert again.read(path("a.bin"), 5, 10) == content[5:15]
    again.close()
    assert again.read(path("a.bin"), 5, 10) == content[5:15]
    again.close()
    if hasattr(again, "link"):
        again.link.close()


def test_threads_read_at_the_same_time(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_store, "MOST_OPEN", 1)
    store, path, content = made
    wrong: list[Any] = []

    def read(seed: int) -> None:
        chance = np.random.default_rng(seed)
        try:
            for offset in chance.integers(0, SIZE - 100, 100).tolist():
                assert store.read(path("a.bin"), offset, 100) == content[offset : offset + 100]
                assert store.size(path("empty")) == 0
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_stale_handle_is_opened_once_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, left = SharedFiles(), [2]
    read = os.preadv

    def stale(fd: int, buffers: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", stale)
    content = (folder / "a.bin").read_bytes()
    for offset in range(5):
        assert store.read(str(folder / "a.bin"), offset, 10) == content[offset : offset + 10]
    left[0] = 1
    monkeypatch.setattr(os, "preadv", lambda *_: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale file handle")))
    with pytest.raises(DataError, match=r"a.bin cannot be read at byte 3: Stale"):
        store.read(str(folder / "a.bin"), 3, 10)
    store.close()


def test_an_open_that_hangs_holds_up_no_other_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, go_on, is_in = SharedFiles(), threading.Event(), threading.Event()
    real = os.open

    def slow(path: Any, *args: Any) -> int:
        if str(path).endswith("a.bin"):
            is_in.set()
            go_on.wait()
        return real(path, *args)

    monkeypatch.setattr(os, "open", slow)
    thread = threading.Thread(target=store.size, args=(str(folder / "a.bin"),))
    thread.start()
    is_in.wait()
    assert store.size(str(folder / "empty")) == 0
    go_on.set()
    thread.join()
    store.close()


def test_a_fork_reads_while_threads_of_its_parent_do(folder: Path) -> None:
    store, over = SharedFiles(), threading.Event()
    path = str(folder / "a.bin")

    def read() -> None:
        while not over.is_set():
            store.read(path, 0, 10)

    thread = threading.Thread(target=read)
    thread.start()
    codes = []
    for _ in range(20):
        pid = os.fork()
        if not pid:
            try:
                store.read(path, 5, 5)
            finally:
                os._exit(0)
        codes.append(os.waitpid(pid, 0)[1])
    over.set()
    thread.join()
    store.close()
    assert codes == [0] * 20


def test_servers_of_one_protocol_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    class Server(fsspec.AbstractFileSystem):  # type: ignore[misc]
        cachable = False

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            if self.name == "broken":
                raise RuntimeError("an error of its own making")
            return self.name.encode()[start:end]

    monkeypatch.setattr(url_files, "file_system", lambda url: (Server(url.split("/")[2]), url))
    store = UrlFiles()
    assert [store.read(f"ssh://{name}/set/a", 0, 3) for name in ("one", "two", "one")] == [b"one", b"two", b"one"]
    with pytest.raises(DataError, match="an error of its own making") as caught:
        store.read("ssh://broken/set/a", 0, 3)
    assert caught.value.is_outage  # no damage of the samples in it, which on_corrupt="skip" would leave out


def test_what_fsspec_does_not_know_is_named() -> None:
    with pytest.raises(DataError, match="no-such-protocol"):
        UrlFiles().size("no-such-protocol://a/b")


def test_a_file_that_has_changed_since_it_was_listed_is_refused(tmp_path: Path) -> None:
    """Offsets of the old file are those of other values in the new one."""
    folder = tmp_path / "set"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    np.save(folder / "b.npy", np.arange(40, dtype=np.float32).reshape(10, 4))
    source = arrays(folder)
    source.manifest.save(tmp_path / "index")
    assert source[13].tolist() == [12, 13, 14, 15]
    np.save(folder / "a.npy", np.arange(40, dtype=np.float64).reshape(10, 4))
    copied: Source = pickle.loads(pickle.dumps(source))
    for changed in (arrays(folder, index=tmp_path / "index"), copied):
        assert changed[13].tolist() == [12, 13, 14, 15]
        with pytest.raises(DataError, match=r"a.npy has changed since it was listed: from 288 bytes of 20.* to 448 "):
            changed[3]
        with pytest.raises(DataError, match="has changed since it was listed"):
            list(Batches(changed, 4, shuffle=False))
    assert arrays(folder)[3].tolist() == [12, 13, 14, 15]


def test_a_library_gets_no_file_that_has_changed_since_it_was_listed(tmp_path: Path) -> None:
    path = tmp_path / "set" / "a.h5"
    path.parent.mkdir()
    for dtype in ("f4", "f8"):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.arange(40, dtype=dtype).reshape(10, 4), chunks=(3, 4), compression="gzip")
        if dtype == "f4":
            source = hdf5(path.parent, keys="x")
    with pytest.raises(DataError, match="has changed since it was listed"):
        source[3]
