"""Measurements of one rank, by table, row and column, and the networks that all frameworks train.

runs = {("step", "JAX: MLP, 40 MB", "none"): timed(step, wait)}
runs["step", "JAX: MLP, 40 MB", "none"](10)         # seconds of a step, measured over ten
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Run: TypeAlias = Callable[[int], float]
"""A function of how many steps to make that returns seconds per step, or another number per step."""

Runs: TypeAlias = dict[tuple[str, str, str], Run]
"""By the word for a table, the title of a row, and that of a column."""

AnyArray: TypeAlias = npt.NDArray[Any]

MLP, CNN = "MLP, 40 MB, batch 64", "CNN, 1.2 MB, batch 32"
WIDTHS = (784, 2048, 2048, 2048, 10)
RATE, MOMENTUM = 1e-3, 0.9


def batch(network: str, times: int = 1) -> tuple[AnyArray, AnyArray]:
    """Inputs and labels of so many batches, which are all the same."""
    random = np.random.default_rng(0)
    count, shape = (64, (784,)) if network == MLP else (32, (28, 28, 1))
    inputs = random.random((count, *shape), np.float32)
    labels = random.integers(0, 10, count, np.int32)
    return np.tile(inputs, (times, *(1 for _ in shape))), np.tile(labels, times)


def layers_of(network: str, layers: Any) -> list[Any]:
    """Layers of a network, of Keras 3 or of the Keras before it: they have the same names."""
    if network == MLP:
        return [layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]] + [layers.Dense(WIDTHS[-1])]
    return [
        layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(90, activation="relu"), layers.Dense(10),
    ]  # fmt: skip


def timed(step: Callable[[], object], wait: Callable[[Any], object]) -> Run:
    """Mean seconds of steps that follow each other; ``wait`` is for what the last one has returned."""

    def run(times: int) -> float:
        begin, result = time.perf_counter(), None
        for _ in range(times):
            result = step()
        wait(result)
        return (time.perf_counter() - begin) / times

    return run


def single(call: Callable[[], object]) -> Run:
    """Median seconds of single calls, each of which is waited for in ``call``."""

    def run(times: int) -> float:
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
        return statistics.median(taken)

    return run


def copies(step: Run, direction: str, nbytes: int) -> Run:
    """How often each byte of gradients is copied into engine memory, or ``out`` of it, in a step."""
    from farandole.gradients.list_reducer import copied

    def run(times: int) -> float:
        before = getattr(copied, direction)
        step(times)
        return float((getattr(copied, direction) - before) / nbytes / times)

    return run
