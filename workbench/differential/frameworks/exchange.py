"""Collectives on the arrays of all ranks, in NumPy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from workbench.differential.frameworks.network import INFINITE, Values

VERBS = ("mean", "sum", "min", "max", "product", "gather", "copy", "scatter", "exchange")
"""``copy`` is a broadcast of the last rank, ``scatter`` a reduce-scatter of sums, ``exchange`` an all-to-all."""


def verbs_of(how: Sequence[str]) -> tuple[str, ...]:
    """Collectives of an action, without the option of infinite numbers."""
    return tuple(each for each in how if each in VERBS)


def draw_verbs(rng: random.Random, most: int) -> tuple[str, ...]:
    """Collectives of an action, at most ``most``, and sometimes the option of infinite numbers."""
    return (*rng.sample(VERBS, rng.randint(1, most)), *rng.choice(((), (INFINITE,))))


def exchanged(verb: str, arrays: Sequence[Values]) -> list[Values]:
    """Values that each rank has after the collective."""
    size, together = len(arrays), np.stack(arrays)
    if verb == "scatter":
        return list(np.split(together.sum(0), size))
    if verb == "exchange":
        parts = [np.split(each, size) for each in arrays]
        return [np.concatenate([each[rank] for each in parts]) for rank in range(size)]
    whole: dict[str, Values] = {
        "mean": together.sum(0) / size,
        "sum": together.sum(0),
        "min": together.min(0),
        "max": together.max(0),
        "product": together.prod(0),
        "gather": np.concatenate(arrays),
        "copy": arrays[-1],
    }
    return [whole[verb]] * size
