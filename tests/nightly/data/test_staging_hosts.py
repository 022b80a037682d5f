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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from farandole import data
from farandole.data.staging import stage as stage_module
from farandole.data.staging.checksums import checksums_of
from farandole.data.staging.plan_journal import replay
from farandole.data.staging.stage import stage
from farandole.data.storage.listing import FileEntry
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import init, shutdown
from farandole.testing.rank import RankContext
from tests.support import waiting
from tests.support.cluster.running import kill_on
from tests.support.data.staging_source import Raw, source_of, stagers, write
from tests.support.data.staging_worker import NBYTES, SAMPLES
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder
from workbench.jobs import run_job

WORKER = SUPPORT / "data" / "staging_worker.py"
ELASTIC = SUPPORT / "data" / "staging_elastic_worker.py"
SHORT = ("--host-timeout", "3", "--blacklist-cooldown-range", "0.5", "2")
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

    def start(self, limit: str = "1GB", epochs: int = 2, *more: str, full: str = "") -> Any:
        command = ["env", f"PYTHONPATH={ROOT}", f"FULL={full}", sys.executable, str(WORKER)]
        command += [str(self.folder), str(self.cache), str(self.out), limit, str(epochs), *more]
        return self.run(self.cluster.nodes, *command)

    def run(self, nodes: Sequence[str], *command: str, options: tuple[str, ...] = ()) -> Any:
        hosts = ",".join(f"{node}:1" for node in nodes)
        started = [sys.executable, "-m", "farandole", "run", "-H", hosts, "--start-timeout", "60", *options, *command]
        return self.cluster.popen(HEAD, started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def train(self, nodes: Sequence[str], limit: str, *options: str) -> Any:
        """Start an elastic job that trains until ``stop``."""
        command = [sys.executable, str(ELASTIC), str(self.folder), str(self.cache), str(self.out), limit]
        return self.run(nodes, *command, options=("--min-np", "1", *SHORT, *options))

    def stop(self, job: Any) -> None:
        """End that job, in which each sample must have been committed once in each epoch but the last."""
        (self.out / "end").touch()
        said, _ = job.communicate(timeout=2 * PATIENCE_S)
        assert job.returncode == 0, said
        epochs: dict[int, list[int]] = {}
        for path in self.out.glob("worker-*"):
            for line in path.read_text().splitlines():
                epoch, *samples = map(int, line.split())
                epochs.setdefault(epoch, []).extend(samples)
        *whole, last = [sorted(epochs[epoch]) for epoch in sorted(epochs)]
        assert all(each == list(range(FILES * SAMPLES)) for each in whole)
        assert len(set(last)) == len(last)

    def held(self, *nodes: str) -> dict[str, int]:
        """Bytes of each piece in the caches of hosts."""
        found = [path for node in nodes for path in (self.cache / node).glob("*/*/????????") if path.is_file()]
        return {path.name: path.stat().st_size for path in found}

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


def test_what_has_no_room_on_one_host_is_kept_by_another(hosts: Hosts) -> None:
    found = hosts.finish(hosts.start("11MB", 3, full="node2"))  # one copy of each piece
    check(found, hosts.root, 3)
    [full] = [each for each in found.values() if each["host"] == "node2"]
    assert (full["held"], full["received"] > 0) == (0, True)
    assert hosts.storage.bytes() <= 1.01 * BYTES


def test_a_host_that_is_told_to_leave_hands_over_what_only_it_has(hosts: Hosts) -> None:
    nodes = ["node1", "node2", "node3"]
    job = hosts.train(nodes, "15500kB", "--elastic-journal", str(hosts.out / "journal"))  # one copy
    until(lambda: sum(hosts.held(*nodes).values()) == BYTES, "for all to be staged")
    assert 0 < sum(hosts.held("node3").values()) < BYTES
    kill_on(hosts.cluster, "node3", "agent", "-TERM")
    until(lambda: sum(hosts.held("node1", "node2").values()) == BYTES, "for node3 to hand over")
    hosts.stop(job)
    assert hosts.storage.bytes() == BYTES
    with (hosts.out / "journal.data").open("rb") as lines:
        plans = [{each.name: each.leaving for each in record.hosts} for record, _ in replay(lines)]
    assert {"node1": False, "node2": False, "node3": True} in plans


@pytest.mark.parametrize(("limit", "copies"), [("1GB", 3), ("15500kB", 1)])
def test_a_host_is_killed_and_comes_again(hosts: Hosts, limit: str, copies: int) -> None:
    nodes = ["node1", "node2", "node3"]
    job = hosts.train(nodes, limit)
    until(lambda: sum(sum(hosts.held(node).values()) for node in nodes) == copies * BYTES, "for all to be staged")
    lost = sum(hosts.held("node3").values()) if copies == 1 else 0
    hosts.cluster.kill("node3")
    shutil.rmtree(hosts.cache / "node3")
    until(lambda: sum(hosts.held("node1", "node2").values()) == BYTES, "for others to read what is lost")
    assert hosts.storage.bytes() <= 1.01 * BYTES + lost
    hosts.cluster.boot("node3")
    hosts.storage.mount("node3", hosts.cluster)
    until(lambda: sum(hosts.held("node3").values()) >= copies // 3 * BYTES, "for node3 to get copies")
    until(lambda: hosts.held("node3"), "for node3 to get copies")
    hosts.stop(job)
    assert hosts.storage.bytes() <= 1.01 * BYTES + lost


def listed(source: Raw, folder: Path) -> list[FileEntry]:
    """The files as hosts see them."""
    sizes, times = source.manifest.sizes.tolist(), source.manifest.mtimes_ns.tolist()
    names = [folder / Path(path).name for path in source.manifest.paths]
    return [FileEntry(str(each), *more) for each, *more in zip(names, sizes, times, strict=True)]


def reads_all(_: RankContext, folder: str, cache: str) -> list[int]:
    """Samples that a rank has read of many small files in an epoch, each with the right bytes."""
    init()
    try:
        staged = stage(data.files(folder), cache=cache, limit="1GB")
        sampler = EpochSampler(staged)
        mine = []
        for batch in list(sampler.cursor.batches(global_batch_size=500)):
            sampler.cursor.hand_out(batch)
            mine += sampler.cursor.own_indices()
            sampler.cursor.advance(batch.samples)
        assert all(staged[index] == b"%d" % index * 500 for index in mine)
        allgather_object(0, name="all have read")
        return mine
    finally:
        shutdown()
        stage_module._say_good_bye()


@pytest.mark.parametrize("size", [1, 8])
def test_small_files_are_listed_once_and_opened_once_by_any_number_of_ranks(tmp_path: Path, size: int) -> None:
    (tmp_path / "set").mkdir()
    for number in range(4000):
        (tmp_path / "set" / f"{number:04}").write_bytes(b"%d" % number * 500)
    try:
        with SharedFolder(tmp_path / "set") as storage:
            folder = storage.mount("here")
            found = run_job(reads_all, size, str(folder), str(tmp_path / "cache"))
            assert sorted(index for mine in found for index in mine) == list(range(4000))
            assert (storage.listings(), storage.opens()) == (1, 4000)
            assert storage.bytes() == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
            waiting.until(lambda: not stagers(tmp_path), "for the stager to end")
    except UnavailableError as reason:
        pytest.skip(str(reason))
