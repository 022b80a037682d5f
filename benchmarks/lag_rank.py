"""One rank of the benchmark of gradient lag: steps with and without 30 ms that every reduction of gradients takes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from benchmarks.steppers import Step
from farandole.collective import Array
from farandole.engines.shm import ShmEngine
from farandole.torch import optim

LATE_S = 0.03
GRADIENTS = 100_000
"""Bytes: what is smaller is a vote."""


def stepper(lag: int) -> Step:
    """A network whose gradients are one bucket, and a batch that takes longer than the delay."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    inputs, labels = torch.rand(4096, 784), torch.randint(0, 10, (4096,))
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9))
    optimizer = optim.GradientLag(optimizer, lag)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimizer.step()

    return step


def timed(step: Step, times: int = 10) -> float:
    """Milliseconds per step, after the first ones."""
    hvd.barrier()
    for _ in range(2):
        step()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times * 1e3


def main() -> None:
    """``RESULT ROUNDS``."""
    result, rounds = Path(sys.argv[1]), int(sys.argv[2])
    hvd.init()
    torch.set_num_threads(1)
    late_s, reduce = 0.0, ShmEngine.allreduce

    def allreduce(engine: ShmEngine, array: Array, *how: Any) -> None:
        if array.nbytes >= GRADIENTS:
            time.sleep(late_s)
        reduce(engine, array, *how)

    ShmEngine.allreduce = allreduce  # type: ignore[method-assign,assignment]
    steps = {lag: stepper(lag) for lag in (0, 1)}
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for late_s in (0.0, LATE_S):
            for lag, step in steps.items():
                taken.setdefault(f"lag {lag}" + (", 30 ms" if late_s else ""), []).append(timed(step))
    if hvd.rank() == 0:
        result.write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
