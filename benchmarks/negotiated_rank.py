"""One rank of the negotiated-lane benchmark: named all-reduces of 4 bytes, and Gloo's of the same, in rounds."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import farandole.torch as hvd
from benchmarks.steppers import connect_gloo


def median_us(once: Callable[[], object], times: int) -> float:
    """Median of single calls, in microseconds."""
    hvd.barrier()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        once()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e6


def main() -> None:
    """``RESULT ROUNDS TIMES``."""
    result, rounds, times = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    hvd.init()
    torch.set_num_threads(1)
    connect_gloo(result.with_name("store"), hvd.rank(), hvd.size())
    tensor = torch.zeros(1)
    contenders: dict[str, Callable[[], object]] = {
        "farandole": lambda: hvd.allreduce(tensor, name="loss"),
        "gloo": lambda: dist.all_reduce(tensor),
    }
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, once in contenders.items():
            measured[name].append(median_us(once, times))
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
