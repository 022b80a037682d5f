"""What coming and going costs, against ``torchrun``: lost workers and hosts, planned changes, votes, re-forms."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, final

from rich.console import Console
from rich.progress import Progress

from benchmarks.elastic_job import JOB_S, PARTS, Blow, ElasticJob, faults
from benchmarks.job import launch
from benchmarks.measure import Row, Sample, Table, Verdict
from workbench.cluster import Cluster, Process, UnavailableError

T = TypeVar("T")

ONE_HOST, TWO_HOSTS, POWER = "2 workers", "4 on 2 hosts", "no power"
LEAK_KB = 8192
"""Resident memory of two processes that is no growth: allocators take some when they like."""


def run(quick: bool) -> list[Table]:
    """All tables of this section; without hosts, only what needs none."""
    kills, others_kills, changes = (1, 1, ["join", "leave"]) if quick else (20, 2, ["leave", "join"] * 4)
    on_hosts = ["power"] if quick else ["kill"] * kills + ["power"] * 2
    with _Section(kills + len(on_hosts) + len(changes)) as section:
        blows = {ONE_HOST: section.struck("cnn", 2, ["kill"] * kills)}
        others = {ONE_HOST: section.through("torchrun", lambda: _torchrun(others_kills))}
        try:
            with Cluster(2) as cluster:
                taken = section.struck("cnn", 4, on_hosts, cluster)
                blows[POWER] = [blow for blow in taken if blow.kind == "power"]
                if not quick:
                    blows[TWO_HOSTS] = [blow for blow in taken if blow.kind == "kill"]
                    others[TWO_HOSTS] = section.through("torchrun on hosts", lambda: _torchrun(others_kills, cluster))
            skipped = ""
        except UnavailableError as error:
            skipped = f"; hosts skipped: {error}"
        sizes = section.struck("state", 3, changes)
        measured = section.through("votes and re-forms", lambda: _reformed(*((5, 100) if quick else (25, 1000))))
    return [
        _next_steps(blows, others, skipped),
        _parts(blows),
        _changes(sizes),
        _votes(measured["voting"]),
        _reforms(measured["reforming"]),
    ]


@final
class _Section:
    """Shows how far the section has come: after every strike, and between its parts."""

    def __init__(self, faults: int) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("elastic", total=faults)

    def __enter__(self) -> _Section:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()

    def struck(self, network: str, workers: int, faults: list[str], cluster: Cluster | None = None) -> list[Blow]:
        """What the strikes have cost an elastic job."""
        where = f"{workers} workers{' on 2 hosts' if cluster else ''}: {', '.join(dict.fromkeys(faults))}"
        with ElasticJob(network, workers, faults, cluster) as job:
            return self.through(where, lambda: job.run(lambda: self._bar.advance(self._task)))

    def through(self, what: str, measure: Callable[[], T]) -> T:
        """``measure()``, which is ``what``."""
        self._bar.update(self._task, description=what)
        return measure()


def _reformed(seconds: float, reforms: int) -> dict[str, Any]:
    return launch("reform_rank", seconds, reforms, options=("--min-np", "1"), stderr=subprocess.DEVNULL)


def _next_steps(blows: Mapping[str, list[Blow]], others: Mapping[str, list[float]], skipped: str) -> Table:
    table = Table(f"From kill -9 or loss of power to the next committed step{skipped}", "s")
    for what, own in blows.items():
        sample = Sample.of(blow.until_next_s for blow in own)
        samples = {"farandole": sample}
        if what in others:
            samples["torchrun"] = Sample.of(others[what])
        if what == POWER:
            verdicts = [Verdict(max(sample.values), "s at most", most=4.0)]
        else:
            verdicts = [Verdict(sample.median, "s", most=0.3), Verdict(_p95(sample.values), "s p95", most=0.5)]
        table.rows += [Row(what if n == 0 else "", samples if n == 0 else {}, (v,)) for n, v in enumerate(verdicts)]
    return table


def _p95(values: Iterable[float]) -> float:
    """By nearest rank: the least of them that 95 % do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def _parts(blows: Mapping[str, list[Blow]]) -> Table:
    """Where the time goes; and what is not part of it: until all places are taken again."""
    table = Table("Parts of it, by the survivor that is last", "ms")
    for part in PARTS:
        samples = {what: Sample.of(1e3 * blow.parts[part] for blow in own) for what, own in blows.items()}
        table.rows.append(Row(part, samples))
    full = {what: [1e3 * b.until_full_s for b in own if b.until_full_s is not None] for what, own in blows.items()}
    table.rows.append(Row("until all are back", {what: Sample.of(own) for what, own in full.items() if own}))
    return table


def _changes(sizes: list[Blow]) -> Table:
    table = Table("Pause of the others, 2 or 3 workers, 100 MB of state", "s")
    for kind in dict.fromkeys(blow.kind for blow in sizes):
        sample = Sample.of(blow.pause_s for blow in sizes if blow.kind == kind)
        table.rows.append(Row(kind, {"farandole": sample}, (Verdict(sample.median, "s", most=0.5),)))
    for part in PARTS[1:]:
        table.rows.append(
            Row(f"  {part}, join", {"farandole": Sample.of(b.parts[part] for b in sizes if b.kind == "join")})
        )
    return table


def _votes(taken: dict[str, list[float]]) -> Table:
    """Each step of one is compared with the step of the other beside it."""
    samples = {name: Sample.of(values) for name, values in taken.items()}
    more = Sample.of(b - a for a, b in zip(taken["static"], taken["elastic"], strict=True))
    base = samples["static"].median / 100
    verdicts = (
        Verdict(more.median / base, "% slower", most=2.0),
        Verdict(more.margin / base, "either way (95 %)", most=2.0),
    )
    return Table("Step without faults, 2 ranks", "ms", rows=[Row("MLP, 40 MB, batch 64", samples, verdicts)])


def _reforms(measured: dict[str, list[float]]) -> Table:
    taken, grown = Sample.of(measured["ms"]), measured["grown"]
    table = Table(f"{len(taken.values)} re-forms of 2 workers, from step to step", "ms")
    table.rows.append(
        Row("time", {"farandole": taken}, (Verdict(statistics.mean(taken.values), "ms mean", most=200.0),))
    )
    names = ("more descriptors", "more threads", "more KB")
    verdicts = [Verdict(value, name, most=0.0) for value, name in zip(grown[:2], names, strict=False)]
    verdicts.append(Verdict(grown[2], names[2], most=LEAK_KB))
    table.rows += [Row("", {}, (verdict,)) for verdict in verdicts]
    return table


def _torchrun(kills: int, cluster: Cluster | None = None) -> list[float]:
    """Seconds from each kill to the next step of the slowest rank.

    Every attempt gets a store of its own: with torch 2.13 those of one job otherwise find the addresses of dead ranks.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, (Path(folder) / "errors").open("w+") as errors:
        host = cluster.nodes[0] if cluster else "localhost"
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:29400", "--rdzv-id", "bench"]
        many = ["--nnodes", "2" if cluster else "1", "--nproc-per-node", "2", "--max-restarts", str(10 * kills)]
        script = ["-m", "benchmarks.elastic_ddp", folder, str(kills)]
        command = [sys.executable, "-m", "torch.distributed.run", *meeting, *many, *script]
        told = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        nodes: list[Process | subprocess.Popen[bytes]]
        if cluster is None:
            told = {**os.environ, **told, "GLOO_SOCKET_IFNAME": "lo"}
            nodes = [subprocess.Popen(command, env=told, stdout=errors, stderr=errors)]
        else:
            told["GLOO_SOCKET_IFNAME"] = "eth0"
            nodes = [cluster.popen(node, command, env=told, stdout=errors, stderr=errors) for node in cluster.nodes]
        try:
            if any(process.wait(JOB_S) for process in nodes):
                raise RuntimeError(f"torchrun failed\n{Path(errors.name).read_text()}")
        finally:
            for process in nodes:
                process.terminate()  # it ends its workers
                process.wait()
        return _resumed(Path(folder))


def _resumed(folder: Path) -> list[float]:
    """By the files of all processes, each with the times of its steps."""
    firsts: dict[int, list[float]] = {}
    for path in folder.glob("steps-*"):
        lines = path.read_text().splitlines()
        if lines:
            firsts.setdefault(int(path.name.rpartition("-")[2]), []).append(float(lines[0].split()[1]))
    return [max(firsts[number + 1]) - at_s for number, (_, at_s) in enumerate(faults(folder))]
