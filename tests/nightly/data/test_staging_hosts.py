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

from farandole.data.planning.plan import HostSpec
from farandole.data.staging.checksums import checksums_of
from farandole.data.staging.host_plan import plan_with_stream
from farandole.data.staging.plan_journal import replay
from farandole.data.storage.listing import FileEntry
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces, most_bytes
from farandole.testing.ledger import read
from tests.support import waiting
from tests.support.cluster.running import kill_on
from tests.support.data.small_files_worker import trained, write_small_files
from tests.support.data.staging_source import Raw, source_of, stagers, write
from tests.support.data.staging_worker import NBYTES, SAMPLES
from tests.support.paths import SUPPORT
from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder
from workbench.jobs import run_job

WORKER = SUPPORT / "data" / "staging_worker.py"
ELASTIC = SUPPORT / "data" / "staging_elastic_worker.py"
SMALL = SUPPORT / "data" / "small_files_worker.py"
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

    def run(self, nodes: Sequence[str], *command: str, options: tuple[str, ...] = (), slots: int = 1) -> Any:
        hosts = ",".join(f"{node}:{slots}" for node in nodes)
        started = [sys.executable, "-m", "farandole", "run", "-H", hosts, "--start-timeout", "60", *options, *command]
        return self.cluster.popen(HEAD, started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def train(self, nodes: Sequence[str], limit: str, *options: str) -> Any:
        """Start an elastic job that trains until ``stop``."""
        command = [sys.executable, str(ELASTIC), str(self.folder), str(self.cache), str(self.out), limit]
        return self.run(nodes, *command, options=("--min-np", "1", *SHORT, *options))

    def stop(self, job: Any) -> list[list[int]]:
        """End that job, in which each sample must have been committed once in each epoch but the last.

        Returns its global batches.
        """
        (self.out / "end").touch()
        said, _ = job.communicate(timeout=2 * PATIENCE_S)
        assert job.returncode == 0, said
        history = read(self.out)
        last = max(history.samples())
        assert not history.problems(FILES * SAMPLES, epochs=last)
        assert max(history.samples()[last].values(), default=0) <= 1
        return history.batches()

    def generation(self, size: int, after: int = 0) -> int:
        """Wait until so many workers have formed a generation that is later than ``after``, and have trained in it."""

        def found() -> list[int]:
            history = read(self.out)
            whole = {number for number, each in history.begun.items() if len(each) == each[0].size == size}
            return sorted(number for number in whole & {*history.steps.values()} if number > after)

        until(found, f"for a generation of {size} after {after}")
        return found()[0]

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


def test_caches_for_half_of_the_data(hosts: Hosts) -> None:
    """The other half is read once in each epoch, by the hosts whose ranks use it."""
    limit, epochs = BYTES // 8, 4
    source = source_of(hosts.root, SAMPLES, NBYTES)
    sizes = Pieces.of(source.manifest, most_bytes(source.manifest, limit)).sizes
    found = hosts.finish(hosts.start(str(limit), epochs))
    check(found, hosts.root, epochs)
    foreseen = plan_with_stream(sizes, [HostSpec(host, limit) for host in hosts.cluster.nodes])
    assert hosts.storage.bytes() <= 1.05 * foreseen.shared_bytes(epochs)
    assert sum(each["received"] for each in found.values()) <= 0.06 * epochs * BYTES


def test_a_lost_host_leaves_caches_that_are_too_small(hosts: Hosts) -> None:
    """The epoch under way goes on in its order, row by row where pieces do not stay; later ones stream."""
    nodes, room = ["node1", "node2", "node3"], 9_000_000
    job = hosts.train(nodes, str(room))

    def epoch() -> int:
        return max(read(hosts.out).samples(), default=0)

    until(lambda: epoch() >= 1, "for the second epoch, which is shuffled exactly")
    assert sum(hosts.held(*nodes).values()) == BYTES
    hosts.cluster.kill("node3")
    shutil.rmtree(hosts.cache / "node3")
    hosts.generation(2)
    begun = epoch()
    until(lambda: epoch() >= begun + 4, "for some epochs without the host")
    epochs = epoch() - begun + 2
    hosts.stop(job)
    kept = 2 * (room - 4 * 2**20 // 2)
    assert hosts.storage.bytes() <= BYTES + 1.1 * epochs * (BYTES - kept)


def dull_batches(hosts: Hosts, steps: int) -> list[list[int]]:
    """The first global batches of a job of one worker that nothing happens to."""
    shutil.rmtree(hosts.out)
    hosts.out.mkdir()
    job = hosts.train(["node1"], "30MB")
    until(lambda: len(read(hosts.out).steps) >= steps, f"for {steps} steps")
    return hosts.stop(job)[:steps]


@pytest.mark.parametrize("moment", ["staging", "staged"])
@pytest.mark.parametrize("fault", ["hang", "cable"])
def test_the_ledger_of_a_faulty_job_is_that_of_a_dull_one(hosts: Hosts, fault: str, moment: str) -> None:
    """A worker stops without a word, or a cable is pulled, while pieces arrive or when all is there, in one copy."""
    nodes, limit = ["node1", "node2", "node3"], "15500kB"
    hosts.storage.rate(6e6 if moment == "staging" else None)
    job = hosts.train(nodes, limit)
    if moment == "staged":
        first = hosts.generation(3)
        assert sum(hosts.held(*nodes).values()) == BYTES  # before the first batch: fewer pieces than in its window
    else:
        until(lambda: hosts.storage.bytes("node3") > 1_000_000 and len(read(hosts.out).workers) == 3, "for a beginning")
        first = max(read(hosts.out).begun, default=0)
        assert not read(hosts.out).steps
    lost = sum(hosts.held("node3").values())
    if fault == "hang":
        kill_on(hosts.cluster, "node3", "staging_elastic_worker", "-STOP")
        last = hosts.generation(3, after=first)
    else:
        hosts.cluster.cut("node3")
        smaller = hosts.generation(2, after=first)
        hosts.cluster.heal("node3")
        last = hosts.generation(3, after=smaller)
    hosts.storage.rate(None)
    batches = hosts.stop(job)
    assert last > first
    if moment == "staged":
        assert hosts.storage.bytes() <= 1.01 * BYTES + lost
    assert dull_batches(hosts, len(batches)) == batches


def listed(source: Raw, folder: Path) -> list[FileEntry]:
    """The files as hosts see them."""
    sizes, times = source.manifest.sizes.tolist(), source.manifest.mtimes_ns.tolist()
    names = [folder / Path(path).name for path in source.manifest.paths]
    return [FileEntry(str(each), *more) for each, *more in zip(names, sizes, times, strict=True)]


@pytest.mark.parametrize("size", [1, 8])
def test_small_files_are_listed_once_and_opened_once_by_any_number_of_ranks(tmp_path: Path, size: int) -> None:
    nbytes = write_small_files(tmp_path / "set", 4000)
    try:
        with SharedFolder(tmp_path / "set") as storage:
            folder, cache = str(storage.mount("here")), str(tmp_path / "cache")
            found = run_job(lambda _: trained(folder, cache), size)
            assert sorted(index for mine in found for index in mine) == list(range(4000))
            assert (storage.listings(), storage.bytes()) == (1, nbytes)
            assert 4000 <= storage.opens() <= 4040  # again where a reader does not run while others open 64 files
            waiting.until(lambda: not stagers(tmp_path), "for the stager to end")
    except UnavailableError as reason:
        pytest.skip(str(reason))


def test_20_000_files_on_16_ranks_of_4_hosts(tmp_path: Path) -> None:
    nbytes = write_small_files(tmp_path / "set", 20_000)
    try:
        with Cluster(4) as cluster, SharedFolder(tmp_path / "set") as storage:
            hosts = Hosts(tmp_path, cluster, storage)
            command = [sys.executable, str(SMALL), str(hosts.folder), str(hosts.cache), str(hosts.out)]
            begin_s = time.monotonic()
            said, _ = (job := hosts.run(cluster.nodes, *command, slots=4)).communicate(timeout=10 * PATIENCE_S)
            print(f"20,000 files on 16 ranks: {time.monotonic() - begin_s:.0f} s")
            assert job.returncode == 0, said
            found = [json.loads(path.read_text()) for path in hosts.out.iterdir()]
            assert len(found) == 16
            assert sorted(index for mine in found for index in mine) == list(range(20_000))
            assert (storage.listings(), storage.bytes()) == (1, nbytes)
            assert 20_000 <= storage.opens() <= 20_200
    except UnavailableError as reason:
        pytest.skip(str(reason))
