"""Adasum against the formula in float64, for any number of ranks and every floating dtype."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from farandole.collective import Array, DType
from farandole.engines.shm import ShmEngine
from farandole.runtime.lanes import adasum
from farandole.testing import reference
from farandole.testing.harness import run_ranks
from farandole.testing.rank import RankContext

Values = npt.NDArray[Any]

LENGTHS = (7, 1, 0, 300)
TOLERANCE = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5, DType.FLOAT16: 5e-3, DType.BFLOAT16: 4e-2}


def _pair(a: Values, b: Values) -> Values:
    ab, aa, bb = a @ b, a @ a, b @ b
    return np.asarray(a * (1 - ab / (2 * aa) if aa else 1) + b * (1 - ab / (2 * bb) if bb else 1))


def _tree(vectors: list[Values]) -> Values:
    while len(vectors) > 1:
        odd = vectors[-1:] if len(vectors) % 2 else []
        vectors = [_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=False)] + odd
    return vectors[0]


def _gradients(rank: int) -> list[Values]:
    random = np.random.default_rng(rank)
    return [random.normal(size=n) + 0.5 for n in LENGTHS]


def _program(member: RankContext) -> dict[DType, list[Values]]:
    engine = ShmEngine(member.group(), member.exchange)
    found = {}
    for dtype in TOLERANCE:
        held = [reference.encode(dtype, g) for g in _gradients(member.rank)]
        adasum.allreduce(engine, [Array(h.ctypes.data, h.size, dtype, h) for h in held], dtype, factor=2.0)
        found[dtype] = [reference.decode(dtype, h).astype(np.float64) for h in held]
    engine.close()
    return found


@functools.cache
def _launch(size: int) -> list[dict[DType, list[Values]]]:
    return run_ranks(_program, size)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: d.label)
@pytest.mark.parametrize("size", [2, 3])
def test_every_tensor_is_combined_by_the_tree(size: int, dtype: DType) -> None:
    combined_by_the_tree(size, dtype)


def combined_by_the_tree(size: int, dtype: DType) -> None:
    """Compare what all ranks have with the tree in float64."""
    expected = [2 * _tree([_gradients(rank)[t] for rank in range(size)]) for t in range(len(LENGTHS))]
    ranks = _launch(size)
    for t in range(len(LENGTHS)):
        np.testing.assert_allclose(ranks[0][dtype][t], expected[t], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        for other in ranks[1:]:
            np.testing.assert_array_equal(other[dtype][t], ranks[0][dtype][t])


def test_what_two_agree_on_counts_once_and_what_is_orthogonal_counts_twice() -> None:
    a, b = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    same, across = float(a @ a), float(a @ b)
    assert adasum.coefficients(same, same, same) == (0.5, 0.5)
    assert adasum.coefficients(same, across, float(b @ b)) == (1.0, 1.0)
    assert adasum.coefficients(0.0, 0.0, 1.0) == (1.0, 1.0)
