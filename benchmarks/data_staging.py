"""Staging on four hosts from storage with a limit, beside ``cp`` and rank strides; and loading from it directly.

The storage serves 400 Mbit/s, to all hosts together, and counts; the hosts are namespaces of this machine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash

from benchmarks.data_loaders import BATCH, LOADERS, DataSet
from benchmarks.fleet import Fleet
from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from farandole.data.planning.plan import HostSpec, plan
from farandole.data.planning.simulate import StagingRates, foretell
from workbench.cluster import Cluster, UnavailableError
from workbench.cluster.shared_folder import SharedFolder

RATE, LINK = 50e6, 1e9
HOSTS = 4
ROWS = 64
CACHE, COPY = "/dev/shm/bench-cache", "/dev/shm/bench-copy"
STEP_S, LATENCY_S = 0.08, 0.02
PATIENCE_S = 600.0
OF_CP = 0.35


def run(quick: bool) -> list[Table]:
    """All tables of this section; one that says why, where this machine cannot have such hosts."""
    samples, window = (2048, 2) if quick else (10240, 8)
    try:
        with _storage(samples) as (data, storage), Cluster(HOSTS) as cluster:
            storage.rate(RATE)
            return [*_staging(_Hosts(data, storage, cluster), window), _direct(quick)]
    except UnavailableError as error:
        return [Table(f"Staging: skipped. {error}", "")]


@contextmanager
def _storage(samples: int) -> Iterator[tuple[DataSet, SharedFolder]]:
    with tempfile.TemporaryDirectory(prefix="bench-storage-") as folder:
        data = DataSet("100 KB", Path(folder)).write(samples)
        with SharedFolder(data.folder) as storage:
            yield data, storage


@final
class _Hosts:
    """Hosts of a cluster, each with a mount of the storage."""

    def __init__(self, data: DataSet, storage: SharedFolder, cluster: Cluster) -> None:
        self.data, self.storage, self.cluster = data, storage, cluster
        [self.folder] = {storage.mount(node, cluster) / "files" for node in cluster.nodes}
        self.nbytes = sum(path.stat().st_size for path in data.files)

    @property
    def least_s(self) -> float:
        """Seconds in which the storage can serve the data once."""
        return self.nbytes / RATE

    def copy(self, strides: bool) -> tuple[float, float]:
        """Seconds until each host has copied all files, or its part of them; and what was read, of the data."""
        self.clear(COPY)
        self.storage.reset()
        names = [str(self.folder / path.name) for path in self.data.files]
        begin = time.monotonic()
        started = [
            self.cluster.popen(node, ["cp", *(names[place::HOSTS] if strides else names), COPY])
            for place, node in enumerate(self.cluster.nodes)
        ]
        codes = [process.wait(PATIENCE_S) for process in started]
        taken_s = time.monotonic() - begin
        if any(codes):
            raise RuntimeError(f"cp ended with {codes}")
        return taken_s, self.storage.bytes() / self.nbytes

    def stage(self, limit: int, window: int, is_warm: bool = False, epochs: int = 2) -> dict[str, Any]:
        """Run a job that stages the data and takes epochs of it: its measurements, and what it asked of the storage."""
        if not is_warm:
            self.clear(CACHE)
        self.storage.reset()
        where = ",".join(f"{node}:1" for node in self.cluster.nodes)
        arguments = (self.folder, CACHE, limit, window, ROWS, epochs)
        measured = launch("data_job", *arguments, cluster=self.cluster, where=where)
        expected = xxhash.xxh3_128(b"".join(path.read_bytes() for path in self.data.files)).hexdigest()
        total = len(self.data.files) * self.data.in_file
        ranks = measured["ranks"]
        if any(sum(rank["samples"][epoch] for rank in ranks) != total for epoch in range(epochs)):
            raise RuntimeError(f"an epoch of {total} samples had others: {[rank['samples'] for rank in ranks]}")
        if {rank["sum"] for rank in ranks} - {""} not in ({expected}, set()):
            raise RuntimeError("a host has other bytes than the storage")
        return measured | {
            "first_s": max(rank["first_s"] for rank in ranks),
            "all_s": max(rank["all_s"] for rank in ranks),
            "peers": sum(rank["received"] for rank in ranks) / self.nbytes,
            "bytes": self.storage.bytes() / self.nbytes,
            "opens": self.storage.opens(),
            "listings": self.storage.listings(),
        }

    def clear(self, folder: str) -> None:
        """Empty a folder of each host, and remove the other."""
        for node in self.cluster.nodes:
            self.cluster.run(node, ["sh", "-c", f"rm -rf {CACHE} {COPY} && mkdir {folder}"])


def _staging(hosts: _Hosts, window: int) -> list[Table]:
    everywhere = hosts.stage(0, window)
    warm = hosts.stage(0, window, is_warm=True)
    parts = hosts.stage(int(hosts.nbytes * 1.2 / HOSTS), window)
    half = hosts.stage(int(hosts.nbytes * 0.5 / HOSTS), window, epochs=4)
    copied_s, copied = hosts.copy(strides=False)
    stride_s, stride = hosts.copy(strides=True)
    hosts.clear(COPY)
    what = f"{hosts.nbytes / 1e9:.2g} GB, {HOSTS} hosts, storage of {RATE * 8 / 1e6:.0f} Mbit/s"
    seconds = [
        _seconds("all of it on each host", everywhere["all_s"], hosts.least_s, 1.15, cp=copied_s),
        _seconds("a part of it on each host", parts["all_s"], hosts.least_s, 1.15, strides=stride_s),
        _seconds(
            f"first batch, window of {window} pieces",
            everywhere["first_s"],
            window * max(everywhere["pieces"]) / RATE,
            1.3,
        ),
    ]
    foretold = [
        _foretold("all of it on each host", everywhere, 1 << 62),
        _foretold("a part of it on each host", parts, int(hosts.nbytes * 1.2 / HOSTS)),
    ]
    rows = [
        _bytes("all of it on each host", everywhere["bytes"], 1.01, cp=copied),
        _bytes("a part of it on each host", parts["bytes"], 1.01, strides=stride),
        _bytes("started again, caches as they were", warm["bytes"], 0.001),
        _bytes("half of it fits into all caches, 4 epochs; 2.5 are the least", half["bytes"], 1.02 * 2.5),
        _bytes(f"between hosts in an epoch, {ROWS} rows each", parts["peers"], 0.06),
    ]
    return [
        Table(f"Staging {what}", "s", rows=seconds),
        Table(f"Staging {what}, and what `farandole data plan` foretells", "s", rows=foretold),
        Table(f"Bytes from the storage, {what}", "of the data", rows=rows),
        _asked(everywhere, what),
    ]


def _seconds(what: str, ours: float, least_s: float, most: float, **others: float) -> Row:
    samples = {name: Sample.of([value]) for name, value in {"farandole": ours, **others}.items()}
    verdicts = [Verdict(ours / least_s, "x these bytes at that rate", most=most)]
    verdicts += [
        Verdict(ours / value, f"x {name}", most=OF_CP if name == "cp" else None) for name, value in others.items()
    ]
    return Row(what, samples, tuple(verdicts))


def _foretold(what: str, measured: dict[str, Any], limit: int) -> Row:
    """Seconds until all is staged, beside those of a plan for the same pieces."""
    pieces = np.array(measured["pieces"])
    staging = plan(pieces, [HostSpec(f"host{number}", limit) for number in range(HOSTS)])
    forecast = foretell(staging, StagingRates(RATE, LINK)).staged_s
    samples = {"farandole": Sample.of([measured["all_s"]]), "foretold": Sample.of([forecast])}
    return Row(what, samples, (Verdict(measured["all_s"] / forecast, "x foretold", most=1.15),))


def _bytes(what: str, ours: float, most: float, **others: float) -> Row:
    samples = {name: Sample.of([value]) for name, value in {"farandole": ours, **others}.items()}
    return Row(what, samples, (Verdict(ours, "of the data", most=most),))


def _asked(measured: dict[str, Any], what: str) -> Table:
    pieces = len(measured["pieces"])
    rows = [
        Row("listings", {"farandole": Sample.of([measured["listings"]])}, (Verdict(measured["listings"], "", most=1),)),
        Row(
            "opens",
            {"farandole": Sample.of([measured["opens"]])},
            (Verdict(measured["opens"] / pieces, f"of {pieces} pieces", most=1.0),),
        ),
    ]
    return Table(f"What is asked of the storage besides, {what}", "calls", rows=rows)


def _direct(quick: bool) -> Table:
    """Share of the time that a training computes, which reads storage itself that is twice as fast as needed."""
    needed = BATCH * 160 * 160 * 4 / STEP_S
    title = f"Unstaged, storage twice as fast as needed, {LATENCY_S * 1e3:.0f} ms for each request"
    with _storage(1024 if quick else 4096) as (data, storage), ExitStack() as stack:
        folder = storage.mount("here")
        fleets = [
            stack.enter_context(Fleet(name, 1, commands=[(_command(name, data, folder), {})]))
            for name in ("farandole", "torch")
            if LOADERS[name].is_installed()
        ]
        storage.rate(2 * needed)
        storage.lag(LATENCY_S)
        used = {fleet.contender: Sample.of(fleet.call("train", STEP_S)) for fleet in fleets}
    verdicts = (Verdict(used["farandole"].median, "of the time", least=0.95),)
    return Table(title, "share of the time computing", rows=[Row(f"steps of {STEP_S * 1e3:.0f} ms", used, verdicts)])


def _command(name: str, data: DataSet, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.data_rank", name, data.name, str(folder), "unchecked"]
