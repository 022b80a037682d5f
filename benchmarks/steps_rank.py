"""One rank of the step benchmark: the same network without communication, under DDP and under Farandole, in rounds."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import farandole.torch as hvd
from benchmarks.models import Task, make
from benchmarks.steppers import ACCUMULATING, STEPPERS, Step, Steppers, connect_gloo, farandole


def timed(step: Step, times: int) -> float:
    """Milliseconds per step, after all ranks have come."""
    hvd.barrier()
    step()
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times * 1e3


def compare(task: Task, steppers: Steppers, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Rounds of each contender in turn."""
    steps = {name: make_step(copy.deepcopy(task)) for name, make_step in steppers.items()}
    slowest = torch.tensor(max(timed(step, 3) for step in steps.values()))
    slowest = hvd.allreduce(slowest, name="slowest", op=hvd.Max)
    times = max(3, int(seconds / (float(slowest) / 1e3)))
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken[name].append(timed(step, times))
    return taken


def with_timeline(task: Task, rounds: int, seconds: float, path: Path) -> dict[str, list[float]]:
    """Rounds with the timeline off and on."""
    step = farandole(task)
    slowest = hvd.allreduce(torch.tensor(timed(step, 5)), name="slowest", op=hvd.Max)
    times = max(5, int(seconds / (float(slowest) / 1e3)))
    taken: dict[str, list[float]] = {"off": [], "on": []}
    for round_ in range(rounds):
        taken["off"].append(timed(step, times))
        hvd.start_timeline(str(path.with_name(f"timeline-{round_}.json")))
        taken["on"].append(timed(step, times))
        hvd.stop_timeline()
    return taken


def communication(task: Task, times: int, path: Path) -> dict[str, float]:
    """Milliseconds per step that rank 0 spends in reductions of gradients, and that its training waits for them."""
    step = farandole(task)
    timed(step, 3)
    hvd.start_timeline(str(path.with_name("reductions.json")))
    timed(step, times - 1)
    hvd.stop_timeline()
    if hvd.rank():
        return {}
    events = json.loads(path.with_name("reductions.json").read_text().rstrip(",\n") + "]")
    return {
        phase: sum(e["dur"] for e in events if (e["pid"], e["name"], e.get("cat")) == (0, phase, row)) / times / 1e3
        for phase, row in (("reduce", "planned"), ("wait", "training"))
    }


def main() -> None:
    """``RESULT ROUNDS SECONDS [NETWORK]``: all networks and the cost of a timeline, or one network in detail."""
    result, rounds, seconds, *only = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]
    hvd.init()
    torch.set_num_threads(1)
    connect_gloo(result.with_name("store"), hvd.rank(), hvd.size())
    measured: dict[str, Any] = {
        name: compare(make(name), STEPPERS, rounds, seconds) for name in only or ("large", "tiny", "cnn")
    }
    if only:
        measured["communication"] = {name: communication(make(name), 10, result) for name in only}
    else:
        measured["virtual workers"] = compare(make("large"), ACCUMULATING, rounds, seconds)
        measured["timeline"] = with_timeline(make("cnn"), rounds, seconds, result)
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
