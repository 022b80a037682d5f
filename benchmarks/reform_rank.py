"""One of two elastic workers: what votes cost a step, and what re-forming costs: ``RESULT SECONDS REFORMS``."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from benchmarks.models import Task, make
from benchmarks.steppers import Step
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current

WARM = 20
"""Re-forms that are over when what a process holds is looked at first."""


def static(task: Task) -> Step:
    """Steps as in a job with a fixed number of workers."""
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    return stepper(task, optimizer)


def elastic(task: Task) -> tuple[Step, Any]:
    """Steps that are voted and committed, and their state."""
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    state = hvd.elastic.TorchState(task.network, optimizer, epoch=0, left=0)
    step = stepper(task, optimizer)

    def voted() -> None:
        step()
        state.commit()

    return voted, state


def stepper(task: Task, optimizer: Any) -> Step:
    """One step of it."""

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def timed(step: Step) -> float:
    """Milliseconds of one step."""
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e3


def voting(seconds: float) -> dict[str, list[float]]:
    """Milliseconds of steps of both; those at the same place of the two lists were made beside each other.

    Where memory lies makes steps of equal trainings differ: one static training is made before the elastic one, and
    one after it.
    """
    fixed = [static(make("large"))]
    voted, state = elastic(make("large"))
    state.sync()
    fixed.append(static(make("large")))
    slowest = max(timed(step) for _ in range(3) for step in (*fixed, voted))
    slowest = float(hvd.allreduce(torch.tensor(slowest), name="slowest", op=hvd.Max))
    taken: dict[str, list[float]] = {"static": [], "elastic": []}
    for number in range(max(4, int(seconds / (4e-3 * slowest)))):
        plain = fixed[number % 2]
        before, first, second, after = [timed(step) for step in (plain, voted, voted, plain)]
        taken["static"] += [before, after]
        taken["elastic"] += [first, second]
    return taken


def reforming(reforms: int) -> dict[str, Any]:
    """Leave and form the next generation after every step; all ranks have the same bits in the end."""
    step, state = elastic(make("tiny"))
    state.left = reforms
    began: list[float] = []
    held: list[list[int]] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        began.append(time.monotonic())
        if state.left in (reforms - WARM, 0):
            held.append(holds())
        if state.left:
            state.left -= 1
            state.on_hosts_updated()
            step()
            raise AssertionError("the change was not heard of")  # ``commit`` raises

    train(state)
    bits = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in state.model.parameters()))
    if len(set(allgather_object((bits, state._step_vote.step)))) > 1 or current().generation != reforms + 1:
        raise RuntimeError("the ranks differ after all these generations")
    taken = [1e3 * (b - a) for a, b in pairwise(began)]
    return {"ms": taken, "grown": [b - a for a, b in zip(*held, strict=True)]}


def holds() -> list[int]:
    """Descriptors, threads and resident kilobytes of this process and the launcher's."""
    launcher = parent(os.getppid())
    total = [0, 0, 0]
    for who in ("self", str(launcher)):
        total[0] += len(os.listdir(f"/proc/{who}/fd"))
        status = dict(line.split(":", 1) for line in Path(f"/proc/{who}/status").read_text().splitlines())
        total[1] += int(status["Threads"])
        total[2] += int(status["VmRSS"].split()[0])
    return total


def parent(pid: int) -> int:
    """Of the agent: the launcher."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def main() -> None:
    """Measure both."""
    result, seconds, reforms = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    hvd.init()
    torch.set_num_threads(1)
    measured = {"reforming": reforming(reforms), "voting": voting(seconds)}
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))
    hvd.shutdown()


if __name__ == "__main__":
    main()
