"""One rank of the comparison of two versions: ``serve`` or ``reform``. It imports nothing of either but the package."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import farandole.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what is of this checkout, and of no version
from benchmarks.fleet import connect
from benchmarks.models import make

STEPS = 60
"""Steps of an elastic job before one of its workers dies, and after."""


def _stepper(work: str) -> Callable[[], None]:
    if work == "named":
        four_bytes = torch.ones(1)

        def reduce() -> None:
            hvd.allreduce_(four_bytes, name="four", op=hvd.Max)

        return reduce
    task = make(work)
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return step


def _timed(step: Callable[[], None], times: int) -> float:
    hvd.barrier()
    step()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times


def serve(stepper: Callable[[str], Callable[[], None]] = _stepper) -> None:
    """Answer what the parent asks: ``check``, ``prepare WORK SECONDS``, ``time TIMES``, ``stop``."""
    line = connect(hvd.rank())
    step, unit = stepper("named"), 1e6
    while True:
        verb, arguments = line.recv()
        if verb == "stop":
            return
        if verb == "check":
            import farandole

            line.send(("answer", str(Path(farandole.__file__).parent)))
        elif verb == "prepare":
            work, seconds = arguments
            step, unit = stepper(work), 1e6 if work == "named" else 1e3
            _timed(step, 20)
            slowest = hvd.allreduce(torch.tensor(_timed(step, 20)), name="slowest", op=hvd.Max)
            line.send(("answer", max(10, int(seconds / float(slowest)))))
        else:
            line.send(("answer", _timed(step, *arguments) * unit))


_last = {"s": 0.0}
"""When this process made its last step."""


@hvd.elastic.run
def _train(state: Any) -> None:
    task, is_due = make("tiny"), state.step == STEPS
    while state.step < 2 * STEPS:
        state.optimizer.zero_grad()
        cross_entropy(state.model(task.inputs), task.labels).backward()
        state.optimizer.step()
        before_s, _last["s"] = _last["s"], time.monotonic()
        if is_due and hvd.rank() == 0:
            print(f"pause_s {_last['s'] - before_s:.6f}", flush=True)
            is_due = False
        state.step += 1
        state.commit()
        if state.step == STEPS and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def reform() -> None:
    """Lose a worker after ``STEPS`` steps, and tell the survivor's pause."""
    task = make("tiny")
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    _train(hvd.elastic.TorchState(task.network, optimizer, step=0))


if __name__ == "__main__":
    hvd.init()
    torch.set_num_threads(1)
    {"serve": serve, "reform": reform}[sys.argv[1]]()
    hvd.shutdown()
