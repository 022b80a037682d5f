"""Optimizers in NumPy and float64, as optax and Keras define them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from workbench.differential.frameworks.network import Values
from workbench.differential.frameworks.plan import PlanTerms

CLIP, DECAY, MOMENTUM = 0.2, 0.05, 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-2
"""The last one is large, because Adam's steps would otherwise follow the sign of gradients that are all rounding."""


@final
class OracleStepper:
    """State of one optimizer for some weights."""

    def __init__(self, framework: str, terms: PlanTerms, weights: Sequence[Values]) -> None:
        self.rate = terms.rate
        self._is_keras, self._terms, self._count = framework == "keras", terms, 0
        self._first = [np.zeros_like(each) for each in weights]
        self._second = [np.zeros_like(each) for each in weights]

    def copy_from(self, other: OracleStepper) -> None:
        """Copy the state of another optimizer."""
        self.rate, self._count = other.rate, other._count
        self._first = [each.copy() for each in other._first]
        self._second = [each.copy() for each in other._second]

    def correct_momentum(self, ratio: float) -> None:
        """Multiply the velocities, like a schedule that changes the rate."""
        self._first = [each * ratio for each in self._first]

    def step(self, weights: list[Values], gradients: list[Values], absent: Iterable[int] = ()) -> list[Values]:
        """New weights; the weights at ``absent``, and their state, do not change."""
        old, first, second = weights, self._first, self._second
        new = self._step(weights, gradients)
        for i in absent:
            new[i], self._first[i], self._second[i] = old[i], first[i], second[i]
        return new

    def _step(self, weights: list[Values], gradients: list[Values]) -> list[Values]:
        self._count += 1
        gradients = clipped(gradients, self._terms.clip)
        if self._terms.decay and self._is_keras:
            weights = [each * (1 - DECAY * self.rate) for each in weights]
        elif self._terms.decay:
            gradients = [g + DECAY * w for g, w in zip(gradients, weights, strict=True)]
        changes = self._changes(gradients)
        return [each + change for each, change in zip(weights, changes, strict=True)]

    def _changes(self, gradients: list[Values]) -> list[Values]:
        if self._terms.optimizer == "sgd":
            return [-self.rate * g for g in gradients]
        if self._terms.optimizer == "adam":
            return self._adam(gradients)
        if self._is_keras:  # the rate is in the velocity
            self._first = [MOMENTUM * m - self.rate * g for m, g in zip(self._first, gradients, strict=True)]
            if self._terms.optimizer == "momentum":
                return list(self._first)
            return [MOMENTUM * m - self.rate * g for m, g in zip(self._first, gradients, strict=True)]
        self._first = [MOMENTUM * m + g for m, g in zip(self._first, gradients, strict=True)]
        if self._terms.optimizer == "momentum":
            return [-self.rate * m for m in self._first]
        return [-self.rate * (MOMENTUM * m + g) for m, g in zip(self._first, gradients, strict=True)]

    def _adam(self, gradients: list[Values]) -> list[Values]:
        self._first = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(self._first, gradients, strict=True)]
        self._second = [BETA_2 * v + (1 - BETA_2) * g * g for v, g in zip(self._second, gradients, strict=True)]
        one, two = 1 - BETA_1**self._count, 1 - BETA_2**self._count
        epsilon = EPSILON / (np.sqrt(two) if self._is_keras else 1.0)  # Keras adds it before it corrects the bias
        pairs = zip(self._first, self._second, strict=True)
        return [-self.rate * (m / one) / (np.sqrt(v / two) + epsilon) for m, v in pairs]


def clipped(gradients: list[Values], how: str) -> list[Values]:
    """Gradients limited to ``CLIP``: in their common norm, in the norm of each, or in each number."""
    if how == "value":
        return [np.clip(each, -CLIP, CLIP) for each in gradients]
    if how == "norm":
        return [each * CLIP / max(float(np.linalg.norm(each)), CLIP) for each in gradients]
    if how == "global":
        norm = float(np.sqrt(sum(float((each**2).sum()) for each in gradients)))
        return [each * CLIP / max(norm, CLIP) for each in gradients]
    return gradients
