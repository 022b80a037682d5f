"""Shared storage under test: what it counts, how it is shared, and what becomes of readers when it stalls or lies."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster, ClusterError, UnavailableError
from workbench.cluster.shared_folder import SharedFolder

SIZES = {"a.bin": 3_000_001, "below/b.bin": 70_000, "below/empty": 0}
MAKE = Callable[..., SharedFolder]

READ = "import os, sys; sys.stdout.write(str(len(open(sys.argv[1], 'rb').read())))"
OWN = """
import signal, sys
from workbench.cluster.shared_folder import SharedFolder
storage = SharedFolder(sys.argv[1])
print(storage.mount("here"), flush=True)
signal.pause()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for name, size in SIZES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
    return folder


@pytest.fixture
def make(root: Path) -> Iterator[MAKE]:
    made: list[SharedFolder] = []

    def one(**options: float | None) -> SharedFolder:
        try:
            made.append(SharedFolder(root, **options))  # type: ignore[arg-type]
        except UnavailableError as error:
            pytest.skip(str(error))
        return made[-1]

    yield one
    for each in made:
        each.close()
    assert _mounted() == [], "mounts are left"


def _mounted() -> list[str]:
    with open("/proc/self/mounts") as mounts:
        return [line for line in mounts if "fuse.shared_folder" in line]


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing announces what a counter and /proc show


def _reader(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", READ, str(file)], stdout=subprocess.PIPE, text=True)


def test_serves_the_folder_as_it_is(make: MAKE, root: Path) -> None:
    storage = make()
    here = storage.mount("here")
    assert sorted(os.listdir(here)) == ["a.bin", "below"]
    (root / "below" / "link").symlink_to("b.bin")
    (root / "many").mkdir()
    for i in range(1000):
        (root / "many" / f"{'x' * (i % 50)}{i}").touch()
    found = {str(each.relative_to(here)): each.lstat() for each in here.rglob("*")}
    assert found.keys() == {str(each.relative_to(root)) for each in root.rglob("*")}
    for name, of in found.items():
        real = (root / name).lstat()
        assert (of.st_size, of.st_mtime_ns, of.st_mode) == (real.st_size, real.st_mtime_ns, real.st_mode)
    for name in SIZES:
        assert (here / name).read_bytes() == (root / name).read_bytes()
    with open(here / "a.bin", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:] == (root / "a.bin").read_bytes()
    assert (here / "below" / "link").read_bytes() == (root / "below" / "b.bin").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        (here / "new").touch()
    with pytest.raises(FileNotFoundError):
        (here / "absent").stat()


def test_counts_each_byte_open_and_listing(make: MAKE) -> None:
    storage = make()
    one, two = storage.mount("one"), storage.mount("two")
    for name in SIZES:
        (one / name).read_bytes()
    with open(two / "a.bin", "rb", buffering=0) as file:
        assert [len(os.pread(file.fileno(), 1000, offset)) for offset in (0, 0, 2_999_501, 4_000_000)] == [
            1000,
            1000,
            500,
            0,
        ]
    assert (storage.bytes("one"), storage.bytes("two")) == (sum(SIZES.values()), 2500)
    assert (storage.opens("one"), storage.opens("two"), storage.opens()) == (3, 1, 4)
    assert storage.listings() == 0
    os.listdir(two)
    os.listdir(two / "below")
    assert (storage.listings("one"), storage.listings("two")) == (0, 2)
    before = storage.lookups("two")
    (two / "below" / "b.bin").stat()
    assert storage.lookups("two") == before + 1
    storage.reset()
    assert (storage.bytes(), storage.opens(), storage.listings(), storage.lookups()) == (0, 0, 0, 0)


def test_counts_under_many_readers(make: MAKE) -> None:
    storage = make()
    folders = [storage.mount(f"host{i}") for i in range(4)]
    with ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(lambda i: len((folders[i % 4] / "a.bin").read_bytes()), range(64)))
    assert sizes == [SIZES["a.bin"]] * 64
    assert [storage.bytes(f"host{i}") for i in range(4)] == [16 * SIZES["a.bin"]] * 4
    assert storage.opens() == 64


def test_mounts_share_one_rate(make: MAKE) -> None:
    # What is served in a while is at most what the rate allows: also on a busy machine, where it may be less.
    rate = 20e6
    storage = make(rate_bytes_s=rate)
    folders = [storage.mount(f"host{i}") for i in range(4)]
    begin = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda folder: (folder / "a.bin").read_bytes(), folders))
    taken_s = time.monotonic() - begin
    assert storage.bytes() == 4 * SIZES["a.bin"]
    assert storage.bytes() <= rate * (taken_s + 0.05) * 1.001
    storage.rate(None)
    assert len((folders[0] / "a.bin").read_bytes()) == SIZES["a.bin"]


def test_a_host_with_latency_comes_after_the_other(make: MAKE) -> None:
    storage = make()
    late, prompt = storage.mount("late"), storage.mount("prompt")
    storage.lag(0.2, "late")
    ended: list[str] = []

    def read(folder: Path) -> None:
        (folder / "below" / "b.bin").read_bytes()
        ended.append(folder.name)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read, (late, prompt)))
    assert ended == ["prompt", "late"]


def test_a_stall_holds_one_host_until_it_heals(make: MAKE) -> None:
    storage = make()
    stalled, other = storage.mount("stalled"), storage.mount("other")
    storage.stall("stalled")
    with _reader(stalled / "a.bin") as reader:
        _until(lambda: storage.stalled("stalled"))
        assert len((other / "a.bin").read_bytes()) == SIZES["a.bin"]
        assert (storage.bytes("stalled"), storage.stalled("other"), reader.poll()) == (0, 0, None)
        storage.heal("stalled")
        assert reader.communicate(timeout=PATIENCE_S)[0] == str(SIZES["a.bin"])
    assert (storage.bytes("stalled"), storage.stalled()) == (SIZES["a.bin"], 0)


def test_a_stall_in_the_middle_of_a_read(make: MAKE) -> None:
    storage = make()
    here = storage.mount("here")
    with open(here / "a.bin", "rb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        begin = os.pread(file.fileno(), 1000, 0)
        storage.stall()
        rest = pool.submit(os.pread, file.fileno(), 1000, 1000)
        _until(storage.stalled)
        assert not rest.done()
        storage.heal()
        assert begin + rest.result(PATIENCE_S) == (here / "a.bin").read_bytes()[:2000]


def test_a_stalled_reader_can_be_killed(make: MAKE) -> None:
    storage = make()
    here = storage.mount("here")
    storage.stall()
    with _reader(here / "a.bin") as reader:
        _until(storage.stalled)
        reader.kill()
        assert reader.wait(PATIENCE_S) == -signal.SIGKILL
    assert storage.stalled() == 0


def test_a_reader_in_uninterruptible_sleep_ends_when_it_heals(make: MAKE) -> None:
    storage = make()
    here = storage.mount("here")
    storage.stall(killable=False)
    with _reader(here / "a.bin") as reader:
        _until(storage.stalled)
        reader.kill()
        _until(lambda: Path(f"/proc/{reader.pid}/stat").read_text().rpartition(")")[2].split()[0] == "D")
        assert (reader.poll(), storage.stalled()) == (None, 1)
        storage.heal()
        assert reader.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("killable", [True, False])
def test_closing_frees_readers(make: MAKE, killable: bool) -> None:
    storage = make()
    here = storage.mount("here")
    storage.stall(killable=killable)
    with _reader(here / "a.bin") as reader:
        _until(storage.stalled)
        storage.close()
        assert reader.wait(PATIENCE_S) == 1
    with pytest.raises(ClusterError, match="closed"):
        storage.opens()


def test_corrupts_one_byte(make: MAKE, root: Path) -> None:
    storage = make()
    one, two = storage.mount("one"), storage.mount("two")
    right = (root / "a.bin").read_bytes()
    storage.corrupt("a.bin", 1_048_576, host="one")
    storage.corrupt("below/b.bin", 69_999, times=1)
    wrong = (one / "a.bin").read_bytes()
    assert [i for i in range(len(right)) if wrong[i] != right[i]] == [1_048_576]
    assert wrong[1_048_576] == right[1_048_576] ^ 0xFF
    assert (two / "a.bin").read_bytes() == right
    last = [(two / "below" / "b.bin").read_bytes()[-1] ^ (root / "below" / "b.bin").read_bytes()[-1] for _ in range(2)]
    assert last == [0xFF, 0]
    storage.heal()
    assert (one / "a.bin").read_bytes() == right
    with pytest.raises(FileNotFoundError):
        storage.corrupt("absent", 0)


def test_fails_reads_and_opens(make: MAKE) -> None:
    storage = make()
    one, two = storage.mount("one"), storage.mount("two")
    storage.fail("a.bin", errno.ESTALE, times=1)
    storage.fail("below/b.bin", errno.EIO, on="open", host="one")
    with open(one / "a.bin", "rb", buffering=0) as file:
        with pytest.raises(OSError, match="Stale") as caught:
            file.read(10)
        assert caught.value.errno == errno.ESTALE
        assert len(file.read(10)) == 10
    with pytest.raises(OSError, match="Input/output"):
        (one / "below" / "b.bin").open("rb")
    assert len((two / "below" / "b.bin").read_bytes()) == SIZES["below/b.bin"]
    storage.heal("one")
    assert len((one / "below" / "b.bin").read_bytes()) == SIZES["below/b.bin"]


@pytest.mark.parametrize("locks", [True, False])
def test_locks_are_refused_where_there_are_none(make: MAKE, locks: bool) -> None:
    here = make(locks=locks).mount("here")
    with open(here / "a.bin", "rb") as file:
        if locks:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        else:
            with pytest.raises(OSError, match="No locks"):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_mounts_go_when_their_owner_is_killed(root: Path, make: MAKE) -> None:
    make()  # or skip
    command = [sys.executable, "-c", OWN, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            assert sorted(os.listdir(folder)) == ["a.bin", "below"]
        finally:
            owner.kill()
    _until(lambda: not _mounted() and not folder.parent.exists())


def test_hosts_see_it_at_one_path_and_after_a_reboot(make: MAKE, make_cluster: Callable[[int], Cluster]) -> None:
    storage, cluster = make(), make_cluster(2)
    [folder] = {storage.mount(host, cluster) for host in cluster.nodes}
    assert _mounted() == []
    read = [sys.executable, "-I", "-S", "-c", READ, str(folder / "a.bin")]
    for node in cluster.nodes:
        assert cluster.run(node, read).stdout == str(SIZES["a.bin"])
    assert [storage.bytes(node) for node in cluster.nodes] == [SIZES["a.bin"]] * 2
    assert storage.listings("node1") == 0
    storage.stall("node1")
    with cluster.popen("node1", read) as reader:
        _until(lambda: storage.stalled("node1"))
        cluster.kill("node1")  # returns when all of its processes are gone
        reader.wait(PATIENCE_S)
    cluster.boot("node1")
    storage.heal("node1")
    assert storage.mount("node1", cluster) == folder
    assert cluster.run("node1", read).stdout == str(SIZES["a.bin"])
    assert storage.bytes("node1") == 2 * SIZES["a.bin"]
