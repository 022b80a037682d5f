"""``torch.distributed`` on Farandole's backend and on Gloo; and an optimizer whose state ranks share out."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.job import JOB_S, farandole, launch
from benchmarks.measure import Row, Sample, Table, Verdict

MOST = {
    "all_reduce 4 B": 0.05,
    "all_reduce 64 KB": 0.1,
    "all_reduce 64 MB": 0.3,
    "all_gather_into_tensor 16 MB": 0.3,
    "reduce_scatter_tensor 16 MB": 0.3,
    "DDP, MLP of 40 MB": 0.75,
    "FSDP2 by layer, MLP of 40 MB": 0.55,
}
"""Of Gloo's time."""

STARTED = """
import sys, torch.distributed as dist
dist.init_process_group(sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    rounds, seconds = (3, 0.2) if quick else (9, 0.6)
    measured = launch("distributed_rank", rounds, seconds)
    backends = Table("torch.distributed, 2 ranks, 1 thread each", "ms")
    shared = Table("DistributedOptimizer(shard_state=True), 2 ranks, 1 thread each", "ms")
    for name, taken in measured.items():
        if name in MOST:
            backends.rows.append(_row(name, taken, "farandole", "gloo", MOST[name]))
        else:
            shared.rows.append(_row(name, taken, "shard_state", "replicated", 1.10))
    twice = Table("DistributedOptimizer(shard_state=True, replicas=2) in a TorchState, 4 ranks, 1 thread each", "ms")
    for name, taken in launch("distributed_rank", rounds, seconds, "replicas", options=("-np", "4")).items():
        twice.rows.append(_row(name, taken, "replicas=2", "replicated", 1.25))
    backends.rows.append(_row("a job until the group is there", _starts(3 if quick else 7), "farandole", "gloo", 1.1))
    return [backends, shared, twice]


def _row(name: str, taken: dict[str, list[float]], ours: str, other: str, most: float) -> Row:
    """Each round is compared with the other's of the same turn."""
    ratio = statistics.median(a / b for a, b in zip(taken[ours], taken[other], strict=True))
    samples = {contender: Sample.of(values) for contender, values in taken.items()}
    return Row(name, samples, (Verdict(ratio, f"x {other}", most=most),))


def _starts(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of whole jobs that make a group and leave it."""
    taken: dict[str, list[float]] = {"farandole": [], "gloo": []}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for _ in range(rounds):
        for backend, values in taken.items():
            command = [*farandole("run", "-np", "2"), sys.executable, "-c", STARTED, backend]
            begin = time.perf_counter()
            subprocess.run(command, check=True, timeout=JOB_S, env=environment)
            values.append((time.perf_counter() - begin) * 1e3)
    return taken
