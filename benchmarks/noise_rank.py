"""One rank of the benchmark of the noise scale: rounds of the same step without and with it."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from benchmarks.models import Task, make
from benchmarks.steppers import Step, farandole
from benchmarks.steps_rank import timed

SETTLING = 48
"""Steps after which it has found how often to measure."""


def measuring(task: Task) -> tuple[Step, hvd.NoiseScale]:
    """The step of ``farandole``, measured."""
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)
    noise = hvd.NoiseScale(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        noise.saw(len(task.inputs))
        cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return step, noise


def compare(task: Task, rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds per step without and with it, in turns, and what it knows of its cost."""
    off = farandole(copy.deepcopy(task))
    on, noise = measuring(copy.deepcopy(task))
    timed(off, 3)
    slowest = hvd.allreduce(torch.tensor(timed(on, SETTLING)), name="slowest", op=hvd.Max)
    taken: dict[str, Any] = {"off": [], "on": []}
    for i in range(max(rounds, int(rounds * seconds / (noise.every * float(slowest) / 1e3)))):
        every = noise.every  # so many steps hold one that is measured
        for state, step in (("off", off), ("on", on)) if i % 2 else (("on", on), ("off", off)):
            taken[state].append(timed(step, every))
    return {**taken, "every": noise.every, "cost_ms": 1e3 * noise.cost_s()}


def main() -> None:
    """``RESULT ROUNDS SECONDS``."""
    result, rounds, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    hvd.init()
    torch.set_num_threads(1)
    measured = {name: compare(make(name), rounds, seconds) for name in ("large", "cnn")}
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
