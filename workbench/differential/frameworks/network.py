"""Network that plans train, with its data and gradients, in NumPy: two dense layers with a tanh between them.

weights = initial(seed=1)
loss, gradients = loss_and_gradients(weights, *batch(number=1, step=0, rank=2, rows=3))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[np.float64]
INPUTS, HIDDEN, OUTPUTS = 4, 5, 2
BIN = 0.25
"""Factor from the number of a bin to its value."""

INFINITE = "infinite"
"""Option of metrics: some numbers are infinite."""

NOISE = 1e-7
"""Standard deviation of the numbers that a random layer adds: too small to be seen, while its seeds are."""

SHAPES = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS), (OUTPUTS,))


def initial(seed: int, rank: int = 0) -> list[Values]:
    """Initial weights: matrix and bias of both layers."""
    source = np.random.default_rng([11, seed, rank])
    return [_exact(source.normal(size=shape) / 2) for shape in SHAPES]


def batch(number: int, step: int, rank: int, rows: int) -> tuple[Values, Values]:
    """Inputs and targets of a rank; the same numbers in every process."""
    source = np.random.default_rng([12, number, step, rank])
    return _exact(source.normal(size=(rows, INPUTS))), _exact(source.normal(size=(rows, OUTPUTS)) + rank)


def adapted(rank: int) -> Values:
    """Rows that a rank adapts a layer to: their mean and spread differ by rank."""
    source = np.random.default_rng([14, rank])
    return _exact(source.normal(size=(32, INPUTS)) * (1 + rank) + rank)


def bins(rank: int) -> list[float]:
    """Boundaries of the bins of a rank's layer, which no batch hits exactly."""
    return [float(each) for each in np.quantile(adapted(rank), (0.2, 0.4, 0.6, 0.8)).round(3) + 2.0**-12]


def vocabulary(rank: int) -> list[int]:
    """Numbers of the bins of rank 0 in an order of the rank's own."""
    return [int(each) for each in np.roll(np.arange(5), rank)]


def prepared(x: Values, rank: int, how: str) -> Values:
    """``x`` after the layer of a rank that prepares it."""
    rows = adapted(rank)
    if how == "bins":
        return BIN * np.digitize(x, bins(rank)).astype(np.float64)
    if how == "looks up":  # 0 is for numbers outside of the vocabulary
        return BIN * (1.0 + np.argsort(vocabulary(rank))[np.digitize(x, bins(0))].astype(np.float64))
    return (x - rows.mean(0)) / rows.std(0) if how == "normalizes" else x


def metric(number: int, rank: int, size: int, how: Sequence[str] = ()) -> Values:
    """Array of a rank for collectives; the number of ranks divides its rows. With ``INFINITE`` some are infinite.

    Each column has infinities of one sign, in another row on each rank.
    """
    found = _exact(np.random.default_rng([13, number, rank]).normal(size=(2 * size, 3)))
    if INFINITE in how:
        found[rank, 0], found[-1 - rank, 1] = np.inf, -np.inf
    return found


def loss_and_gradients(weights: Sequence[Any], x: Values, y: Values) -> tuple[float, list[Values]]:
    """Mean squared error, and its derivatives by the weights."""
    first, bias, second, offset = weights
    hidden = np.tanh(x @ first + bias)
    missing = hidden @ second + offset - y
    back = 2 * missing / missing.size
    inner = (back @ second.T) * (1 - hidden**2)
    return float((missing**2).mean()), [x.T @ inner, inner.sum(0), hidden.T @ back, back.sum(0)]


def _exact(values: npt.NDArray[Any]) -> Values:
    """Numbers that float32 represents exactly."""
    return values.astype(np.float32).astype(np.float64)
