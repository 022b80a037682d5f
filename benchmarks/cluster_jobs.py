"""Whole jobs between hosts, which are namespaces of this machine: small collectives, training steps, the start."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

from benchmarks.hosts import RATE
from benchmarks.job import farandole, launch
from benchmarks.measure import Row, Sample, Table, Verdict
from benchmarks.models import make
from workbench.cluster import HEAD, Cluster, UnavailableError

WHERE = "node1:2,node2:2"
PLACE = "2 hosts with 2 ranks each"
MANY_HOSTS = 8
START_DEADLINE_S = 120.0
FIRST_COLLECTIVE = "import torch, farandole.torch as h; h.init(); h.allreduce(torch.ones(1), name='first')"


def run(quick: bool) -> list[Table]:
    """All tables of this section; one that says why, where this machine cannot have such hosts."""
    try:
        with Cluster(2) as cluster:
            tables = [_negotiated(cluster, quick), _steps(cluster, quick)]
        return [*tables, _start(1 if quick else 3)]
    except UnavailableError as error:
        return [Table(f"Jobs between hosts: skipped. {error}", "")]


def _negotiated(cluster: Cluster, quick: bool) -> Table:
    measured = launch("negotiated_rank", *((3, 200) if quick else (9, 500)), cluster=cluster, where=WHERE)
    samples = {name: Sample.of(values) for name, values in measured.items()}
    verdict = Verdict(samples["farandole"].median, "us", most=500.0)
    row = Row('hvd.allreduce(t, name="loss"), 4 B', samples, (verdict,))
    return Table(f"Negotiated lane, {PLACE}, links without a limit", "us", rows=[row])


def _steps(cluster: Cluster, quick: bool) -> Table:
    with ExitStack() as stack:
        for node in cluster.nodes:
            cluster.rate(node, RATE)
            stack.callback(cluster.rate, node, None)
        measured = launch("steps_rank", 3 if quick else 7, 0.4 if quick else 1.0, "large", cluster=cluster, where=WHERE)
    samples = {name: Sample.of(values) for name, values in measured["large"].items()}
    timeline = measured["communication"]["large"]
    verdicts = (
        Verdict(samples["farandole"].median / samples["ddp"].median, "x DDP", most=0.8),
        Verdict(timeline["reduce"], "ms of reductions (timeline)"),
        Verdict(100 * max(0.0, 1 - timeline["wait"] / timeline["reduce"]), "% of them hidden behind backward"),
    )
    return Table(f"Training step, {PLACE}, links of {RATE}", "ms", rows=[Row(make("large").title, samples, verdicts)])


def _start(rounds: int) -> Table:
    """From the command to the first collective on 16 ranks, and as many interpreters that import torch at once."""
    taken: dict[str, list[float]] = {"import torch": [], "farandole run": []}
    with Cluster(MANY_HOSTS) as cluster:
        hosts = ",".join(f"{node}:2" for node in cluster.nodes)
        job = farandole("run", "-H", hosts, sys.executable, "-c", FIRST_COLLECTIVE)
        for _ in range(rounds):
            taken["import torch"].append(_imports(cluster))
            begin = time.perf_counter()
            cluster.run(HEAD, job, timeout_s=START_DEADLINE_S, env={"OMP_NUM_THREADS": "1"})
            taken["farandole run"].append(time.perf_counter() - begin)
    samples = {name: Sample.of(values) for name, values in taken.items()}
    above = samples["farandole run"].median - samples["import torch"].median
    row = Row("until the first all-reduce", samples, (Verdict(above, "s more", most=2.0),))
    return Table(f"Time to start {MANY_HOSTS} hosts with 2 ranks each, over ssh", "s", rows=[row])


def _imports(cluster: Cluster) -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-c", "import torch"]
    processes = [cluster.popen(node, command, env={"OMP_NUM_THREADS": "1"}) for node in cluster.nodes for _ in range(2)]
    if any(process.wait(START_DEADLINE_S) for process in processes):
        raise RuntimeError("import torch failed")
    return time.perf_counter() - begin
