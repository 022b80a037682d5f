"""One rank of the benchmark of the detector: blocks of steps of one training, with and without it in random order."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import torch

import farandole.torch as hvd
from benchmarks.divergence import SECONDS
from benchmarks.models import Task, make
from benchmarks.noise_rank import CLOCKS, mean
from benchmarks.steppers import Step, farandole
from benchmarks.steps_rank import timed
from farandole.gradients.snapshots import EVERY_OF_SMALL, FIRST_STEPS
from farandole.runtime.session.init import current

FEWEST = 6


Block: TypeAlias = Callable[[Step, str], list[float]]
"""Milliseconds of 64 steps by each clock, with what is measured or "off"."""


def compare(task: Task, seconds: float, on: str, block: Block) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of a block with nothing on, and how much more one takes with ``on``, by each clock."""
    step = farandole(task)
    for _ in range(EVERY_OF_SMALL - 1):  # 'timed' makes one more: blocks begin where the detector's 64 steps do
        step()
    assert FIRST_STEPS < EVERY_OF_SMALL
    slowest = float(hvd.allreduce(torch.tensor(timed(step, EVERY_OF_SMALL - 1)), name="slowest", op=hvd.Max))
    step()
    taken: dict[str, dict[str, list[float]]] = {clock: {"off": [], "cost": []} for clock in CLOCKS}
    lots = random.Random(1)
    for _ in range(max(FEWEST, int(seconds * 1e3 / (2 * EVERY_OF_SMALL * slowest)))):
        spent = {mode: block(step, mode) for mode in lots.sample(("off", on), 2)}
        for kept, without, with_it in zip(taken.values(), spent["off"], spent[on], strict=True):
            kept["off"].append(without)
            kept["cost"].append(with_it - without)
    return {clock: {kind: mean(values) for kind, values in kept.items()} for clock, kept in taken.items()}


def detecting(step: Step, mode: str) -> list[float]:
    """Milliseconds of 64 steps by each clock, with the detector in this ``mode``."""
    session = current()
    session.settings = msgspec.structs.replace(session.settings, check_divergence=mode)
    begin = [clock() for clock in CLOCKS.values()]
    for _ in range(EVERY_OF_SMALL):
        step()
    return [1e3 * (clock() - then) for clock, then in zip(CLOCKS.values(), begin, strict=True)]


def main() -> None:
    """``RESULT SECONDS...``, the latter for each network."""
    result, seconds = Path(sys.argv[1]), [float(each) for each in sys.argv[2:]]
    hvd.init()
    torch.set_num_threads(1)
    limits = zip(SECONDS, seconds, strict=True)
    measured = {name: compare(make(name), limit, "sampled", detecting) for name, limit in limits}
    if hvd.rank() == 0:
        result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
