"""One rank of the benchmark of ``hvd.log``: blocks of steps of one training, with and without it in random order."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

import farandole.torch as hvd
from benchmarks.divergence_rank import compare
from benchmarks.models import make
from benchmarks.noise_rank import CLOCKS
from benchmarks.steppers import Step
from farandole.gradients.snapshots import EVERY_OF_SMALL


def _empty(step: int | None = None, samples: int | None = None, **values: Any) -> None:
    """Do nothing, with the arguments of ``hvd.log``."""


def logging(step: Step, mode: str, beside_call: bool) -> list[float]:
    """Milliseconds of 64 steps by each clock, each with a log of its loss, or with the call of an empty function."""
    loss, log = torch.tensor(0.5), hvd.log if mode == "log" else _empty if beside_call else None
    begin = [clock() for clock in CLOCKS.values()]
    for number in range(EVERY_OF_SMALL):
        step()
        if log is not None:
            log(loss=loss, samples=32 * number)
    return [1e3 * (clock() - then) for clock, then in zip(CLOCKS.values(), begin, strict=True)]


def main() -> None:
    """``RESULT SECONDS nothing|call``: what steps with a log are beside."""
    hvd.init()
    torch.set_num_threads(1)
    block = partial(logging, beside_call=sys.argv[3] == "call")
    measured = {"tiny": compare(make("tiny"), float(sys.argv[2]), "log", block)}
    if hvd.rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
