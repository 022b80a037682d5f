"""One rank of the benchmark of the noise scale: steps of trainings with and without it, in turns."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Iterator
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


def measuring(task: Task, every: int | None = None) -> tuple[Step, hvd.NoiseScale]:
    """The step of ``farandole``, measured."""
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
    step, noise = measuring(copy.deepcopy(task))
    timed(step, SETTLING)
    return {"every": noise.every, "cost_ms": 1e3 * noise.cost_s()}


def compare(task: Task, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of steps without it, measured, and others, and how much more than the one beside it each took.

    Where memory lies makes steps of equal trainings differ. So there are two of each, made in different order: one
    begins with a step that is measured, and the other with one that is not.
    """
    without = [farandole(copy.deepcopy(task))]
    with_it = [measuring(copy.deepcopy(task), every=2)[0] for _ in range(2)]
    without.append(farandole(copy.deepcopy(task)))
    with_it[1]()
    slowest = hvd.allreduce(torch.tensor(max(timed(step, 3) for step in without)), name="slowest", op=hvd.Max)
    for step in with_it:
        timed(step, 3)  # four steps: it is measured next if it was before
    kinds = ("without", "measured", "others", "more measured", "more others")
    taken: dict[str, dict[str, list[float]]] = {clock: {kind: [] for kind in kinds} for clock in ("wall", "processor")}
    for number in range(max(4, int(seconds / (4e-3 * float(slowest))))):
        plain, measured = without[number % 2], with_it[number % 2]
        order = ("measured", "others") if number % 2 == 0 else ("others", "measured")
        rounds = [list(clocked(step)) for step in (plain, measured, measured, plain)]
        for clock, (before, first, second, after) in zip(taken.values(), zip(*rounds, strict=True), strict=True):
            clock["without"] += [before, after]
            for kind, spent, beside in zip(order, (first, second), (before, after), strict=True):
                clock[kind].append(spent)
                clock[f"more {kind}"].append(spent - beside)
    return taken


def clocked(step: Step) -> Iterator[float]:
    """Milliseconds of one step: by the clock on the wall, and of the processor."""
    begin, begin_processor = time.perf_counter(), time.process_time()
    step()
    yield 1e3 * (time.perf_counter() - begin)
    yield 1e3 * (time.process_time() - begin_processor)


def main() -> None:
    """``RESULT SECONDS``, the latter for each network."""
    result, seconds = Path(sys.argv[1]), float(sys.argv[2])
    hvd.init()
    torch.set_num_threads(1)
    tasks = {name: make(name) for name in ("large", "cnn")}
    measured = {name: {**found(task), "steps": compare(task, seconds)} for name, task in tasks.items()}
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
