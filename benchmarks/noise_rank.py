"""One rank of the benchmark of the noise scale: steps of one training, with and without it in random order."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from benchmarks.models import Task, make
from benchmarks.steppers import Step
from benchmarks.steps_rank import timed

SETTLING = 48
"""Steps after which it has found how often to measure."""

NEVER = 2**40
FEWEST = 48
"""Comparisons, of which 6 are of measured steps: fewer have no interval."""
NETWORKS = ("large", "cnn")
KINDS = ("without", "measured", "others")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def training(task: Task, every: int | None = None) -> tuple[Step, hvd.NoiseScale]:
    """The step of a training that is measured."""
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)
    noise = hvd.NoiseScale(optimizer, every=every)

    def step() -> None:
        optimizer.zero_grad()
        noise.saw(len(task.inputs))
        cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return step, noise


def found(task: Task) -> dict[str, Any]:
    """How often it measures if that is left to it, and what it says that this costs."""
    step, noise = training(task)
    timed(step, SETTLING)
    return {"every": noise.every, "cost_ms": 1e3 * noise.cost_s()}


def compare(task: Task, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of two steps without it, and how much more two with it take, by each clock.

    All are steps of one training, so whatever they use lies where it lies. Two with it are beside two without, in an
    order that is drawn by lot. Of every eighth two the first is measured; what it leaves to the second, as colder
    caches, counts.
    """
    step, noise = training(task, every=1)
    slowest = float(hvd.allreduce(torch.tensor(timed(step, 8)), name="slowest", op=hvd.Max))
    taken: dict[str, dict[str, list[float]]] = {clock: {kind: [] for kind in KINDS} for clock in CLOCKS}
    lots = random.Random(1)
    for number in range(max(FEWEST, int(seconds / (4e-3 * slowest)))):
        kind = "measured" if number % 8 == 7 else "others"
        spent = {each: two(step, noise, each) for each in lots.sample(("without", kind), 2)}
        for kept, without, with_it in zip(taken.values(), spent["without"], spent[kind], strict=True):
            kept["without"].append(without)
            kept[kind].append(with_it - without)
    return {clock: {kind: mean(values) for kind, values in kept.items()} for clock, kept in taken.items()}


def mean(values: list[float]) -> list[float]:
    """Over the ranks: one that is late makes this step of its own longer, and the next one of the other."""
    averages: list[float] = hvd.allreduce(torch.tensor(values, dtype=torch.float64)).tolist()
    return averages


def two(step: Step, noise: hvd.NoiseScale, kind: str) -> list[float]:
    """Milliseconds of two steps by each clock; of those ``measured`` the first is, the second is one of the others."""
    with noise.paused() if kind == "without" else nullcontext():
        begin = [clock() for clock in CLOCKS.values()]
        noise.every = 1 if kind == "measured" else NEVER
        step()
        noise.every = NEVER
        step()
        return [1e3 * (clock() - then) for clock, then in zip(CLOCKS.values(), begin, strict=True)]


def main() -> None:
    """``RESULT SECONDS...``, the latter for each network."""
    result, seconds = Path(sys.argv[1]), [float(each) for each in sys.argv[2:]]
    hvd.init()
    torch.set_num_threads(1)
    measured = {}
    for name, limit in zip(NETWORKS, seconds, strict=True):
        measured[name] = {**found(make(name)), "milliseconds": compare(make(name), limit)}
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
