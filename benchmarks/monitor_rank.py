"""One rank of the benchmark of ``hvd.log``: blocks of steps of one training, with and without it in random order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import farandole.torch as hvd
from benchmarks.divergence_rank import compare
from benchmarks.models import make
from benchmarks.noise_rank import CLOCKS
from benchmarks.steppers import Step
from farandole.gradients.snapshots import EVERY_OF_SMALL


def logging(step: Step, mode: str) -> list[float]:
    """Milliseconds of 64 steps by each clock, each with a log of its loss or without."""
    loss = torch.tensor(0.5)
    begin = [clock() for clock in CLOCKS.values()]
    for number in range(EVERY_OF_SMALL):
        step()
        if mode == "log":
            hvd.log(loss=loss, samples=32 * number)
    return [1e3 * (clock() - then) for clock, then in zip(CLOCKS.values(), begin, strict=True)]


def main() -> None:
    """``RESULT SECONDS``."""
    hvd.init()
    torch.set_num_threads(1)
    measured = {"tiny": compare(make("tiny"), float(sys.argv[2]), "log", logging)}
    if hvd.rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
