"""Staging on hosts: each byte once in all, storage that stalls or lies, and stagers and hosts that are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.data.staging.checksums import checksums_of
from farandole.data.storage.listing import FileEntry
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from tests.support.data.staging_source import Raw, source_of, write
from tests.support.data.staging_worker import NBYTES, SAMPLES
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder

WORKER = SUPPORT / "data" / "staging_worker.py"
ROOT = SUPPORT.parents[1]
FILES = 24
BYTES = FILES * SAMPLES * NBYTES


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # nothing announces what counters of a file system show


class Hosts:
    """Four hosts with a folder that all of them see, and jobs on them."""

    def __init__(self, tmp_path: Path, cluster: Cluster, storage: SharedFolder) -> None:
        self.cluster, self.storage = cluster, storage
        self.root, self.out, self.cache = tmp_path / "set", tmp_path / "out", tmp_path / "cache"
        self.out.mkdir()
        [self.folder] = {storage.mount(host, cluster) for host in cluster.nodes}

    def start(self, limit: str = "1GB", epochs: int = 2, *more: str, options: tuple[str, ...] = ()) -> Any:
        hosts = ",".join(f"{node}:1" for node in self.cluster.nodes)
        command = [sys.executable, "-m", "farandole", "run", "-H", hosts, "--start-timeout", "60", *options]
        command += ["env", f"PYTHONPATH={ROOT}", sys.executable, str(WORKER)]
        command += [str(self.folder), str(self.cache), str(self.out), limit, str(epochs), *more]
        return self.cluster.popen(HEAD, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finish(self, job: Any) -> dict[int, dict[str, Any]]:
        said, _ = job.communicate(timeout=2 * PATIENCE_S)
        assert job.returncode == 0, said
        found = {int(path.stem): json.loads(path.read_text()) for path in self.out.glob("*.json")}
        for path in self.out.iterdir():
            path.unlink()
        return found

    def pids(self, host: str) -> list[int]:
        """Stagers of a host, as this namespace numbers them."""
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if b"stager_process import main" in Path(f"/proc/{name}/cmdline").read_bytes() and any(
                    os.readlink(link).startswith(str(self.cache / host)) for link in Path(f"/proc/{name}/fd").iterdir()
                ):
                    found.append(int(name))
        return found


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    write(tmp_path / "set", FILES, SAMPLES, NBYTES)
    try:
        with Cluster(4) as cluster, SharedFolder(tmp_path / "set") as storage:
            yield Hosts(tmp_path, cluster, storage)
    except UnavailableError as reason:
        pytest.skip(str(reason))


def check(found: dict[int, dict[str, Any]], root: Path, epochs: int) -> None:
    """Every sample once in each epoch, with the bytes that the files have."""
    for epoch in range(epochs):
        every = sorted(index for each in found.values() for index in each["seen"][epoch])
        assert every == list(range(FILES * SAMPLES))
    for file in range(FILES):
        content = (root / f"{file:03}.bin").read_bytes()
        for each in found.values():
            for index, value in each["sums"].items():
                if int(index) // SAMPLES == file:
                    at = int(index) % SAMPLES * NBYTES
                    assert value == zlib.crc32(content[at : at + NBYTES]), f"sample {index} on {each['host']}"


@pytest.mark.parametrize("limit", ["1GB", "10MB"])
def test_each_byte_is_read_once_in_all_and_then_never(hosts: Hosts, limit: str) -> None:
    found = hosts.finish(hosts.start(limit))
    check(found, hosts.root, 2)
    assert sum(each["shared"] for each in found.values()) == BYTES
    assert hosts.storage.bytes() == BYTES
    hosts.storage.reset()
    check(hosts.finish(hosts.start(limit, 1)), hosts.root, 1)
    assert hosts.storage.bytes() == 0


def test_slow_storage_is_no_stalled_storage(hosts: Hosts) -> None:
    hosts.storage.rate(4e6)
    found = hosts.finish(hosts.start("1GB", 1, "3"))  # patience of 3 s, and each piece takes longer
    check(found, hosts.root, 1)
    assert hosts.storage.bytes() <= 1.01 * BYTES


def test_what_one_host_cannot_read_is_read_elsewhere(hosts: Hosts) -> None:
    hosts.storage.rate(8e6)
    job = hosts.start("1GB", 1, "2", "later")
    until(lambda: hosts.storage.bytes("node2") > 0, "for node2 to begin")
    hosts.storage.stall("node2")
    found = hosts.finish(job)
    check(found, hosts.root, 1)
    assert hosts.storage.bytes() <= 1.5 * BYTES
    hosts.storage.heal()


def test_all_mounts_stall_and_heal(hosts: Hosts) -> None:
    hosts.storage.rate(8e6)
    job = hosts.start("1GB", 1, "2")
    until(lambda: hosts.storage.bytes() > 0, "for hosts to begin")
    hosts.storage.stall()
    until(lambda: hosts.storage.stalled() > 3, "for readers to be stuck")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(6)
    hosts.storage.heal()
    hosts.storage.rate(None)
    check(hosts.finish(job), hosts.root, 1)


def test_a_stager_is_killed(hosts: Hosts) -> None:
    hosts.storage.rate(8e6)
    job = hosts.start("1GB", 2)
    until(lambda: hosts.storage.bytes("node3") > 2_000_000 and hosts.pids("node3"), "for node3 to begin")
    for pid in hosts.pids("node3"):
        os.kill(pid, signal.SIGKILL)
    hosts.storage.rate(None)
    found = hosts.finish(job)
    check(found, hosts.root, 2)
    assert hosts.storage.bytes() <= 1.5 * BYTES


def test_a_stager_is_killed_whose_reader_cannot_be(hosts: Hosts) -> None:
    hosts.storage.rate(8e6)
    job = hosts.start("1GB", 1, "2", "later")
    until(lambda: hosts.storage.bytes("node3") > 1_000_000 and hosts.pids("node3"), "for node3 to begin")
    hosts.storage.stall("node3", killable=False)
    until(lambda: hosts.storage.stalled("node3") > 0, "for readers to be stuck")
    for pid in hosts.pids("node3"):
        os.kill(pid, signal.SIGKILL)
    hosts.storage.rate(None)
    time.sleep(8)  # the worker looks, finds that nobody answers, and starts another one
    hosts.storage.heal()
    check(hosts.finish(job), hosts.root, 1)


def test_a_lost_host_is_read_again(hosts: Hosts) -> None:
    hosts.storage.rate(8e6)
    job = hosts.start("1GB", 1)
    until(lambda: hosts.storage.bytes("node4") > 1_000_000, "for node4 to begin")
    hosts.cluster.kill("node4")
    hosts.storage.rate(None)
    job.communicate(timeout=2 * PATIENCE_S)
    assert job.returncode
    hosts.cluster.boot("node4")
    hosts.storage.mount("node4", hosts.cluster)
    hosts.storage.reset()
    for path in hosts.out.iterdir():
        path.unlink()
    check(hosts.finish(hosts.start("1GB", 1)), hosts.root, 1)
    assert hosts.storage.bytes() < BYTES


def test_a_lie_of_the_storage_to_one_host_is_found(hosts: Hosts) -> None:
    index = str(hosts.root.parent / "index")
    source = source_of(hosts.root, SAMPLES, NBYTES)
    manifest = Manifest.of("raw", str(hosts.folder), listed(source, hosts.folder), source.manifest.fields)
    pieces = Pieces.of(source.manifest)
    manifest.with_sums(checksums_of(source.manifest, pieces, source.store)).save(index)
    source.store.close()
    for host in ("node1", "node2", "node3"):
        hosts.storage.corrupt("007.bin", 500_000, host=host)
    found = hosts.finish(hosts.start("1GB", 1, "30", "later", index))
    check(found, hosts.root, 1)
    hosts.storage.heal()
    hosts.storage.corrupt("007.bin", 500_000)
    shutil.rmtree(hosts.cache)
    job = hosts.start("1GB", 1, "30", "later", index)
    said, _ = job.communicate(timeout=2 * PATIENCE_S)
    assert job.returncode
    assert "cannot be had on node" in said
    assert "differs from the checksum in the index" in said


def listed(source: Raw, folder: Path) -> list[FileEntry]:
    """The files as hosts see them."""
    sizes, times = source.manifest.sizes.tolist(), source.manifest.mtimes_ns.tolist()
    names = [folder / Path(path).name for path in source.manifest.paths]
    return [FileEntry(str(each), *more) for each, *more in zip(names, sizes, times, strict=True)]
