"""Epochs to a target by batch: E(B) = E_min (1 + B / B_crit), from measured epochs or from the gradient noise scale.

epochs = from_table([(128, 9), (256, 9), (512, 11.5), (1024, 13), (2048, 22.9)])
epochs.at(4096)                  # draws; quantiles(...) of these is an interval

McCandlish et al. 2018 (arXiv 1812.06162), equation 2.11. Recipes differ by batch, so this is a rough guide:
Shallue et al. 2018 (arXiv 1811.03600).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from farandole.errors import UsageError
from farandole.predict import model
from farandole.predict.model import CONFIDENCE, Floats, posterior

RECIPES = 0.1
"""Share by which the epochs of two recipes differ."""
UNSURE = 2.0
"""Uncertainty factor (90 %) of a noise scale without bounds: it estimates B_crit only roughly."""


@final
@dataclass(frozen=True)
class Epochs:
    """Draws of E_min and of the critical batch in samples; ``most`` is the largest batch that was tried, or 0."""

    least: Floats
    critical: Floats
    most: float = 0.0

    def at(self, batch: float) -> Floats:
        """Epochs with steps of ``batch`` samples, one for each draw."""
        return np.asarray(self.least * (1 + batch / self.critical))


def from_table(rows: Sequence[tuple[float, float]]) -> Epochs:
    """Fit to rows of batch and epochs, with relative errors; at least two batches are needed."""
    if len({batch for batch, _ in rows}) < 2 or min(min(row) for row in rows) <= 0:
        raise UsageError(
            "epochs by batch need at least two batches, all above 0: batch,epochs and then 128,9 in a line"
        )
    batches, epochs = (np.array(column, float) for column in zip(*rows, strict=True))
    design = np.stack([np.ones(len(rows)), batches], 1) / epochs[:, None]
    covariance = RECIPES**2 * np.eye(len(rows))
    least, slope = posterior(
        design, np.ones(len(rows)), covariance, np.zeros(2), 10 * epochs.max() / batches.min() ** np.arange(2.0)
    )[0].T
    return Epochs(least, least / np.maximum(slope, 1e-12), float(batches.max()))


def from_noise_scale(scale: float, epochs: float, batch: float, bounds: tuple[float, float] | None = None) -> Epochs:
    """Epochs from a noise scale in samples, and the ``epochs`` that steps of ``batch`` samples need.

    ``bounds``: of its ``CONFIDENCE`` interval, by default half and twice of it.
    """
    low, high = bounds or (scale / UNSURE, scale * UNSURE)
    if not 0 < low <= scale <= high < math.inf or epochs <= 0 or batch <= 0:
        raise UsageError(
            f"noise scale {scale:g} ({low:g} to {high:g}), {epochs:g} epochs of {batch:g}: give all above 0"
        )
    sd = math.log(high / low) / 2 / {0.9: 1.645}[CONFIDENCE]
    critical = scale * np.exp(sd * np.random.default_rng(2).standard_normal(model.DRAWS))
    return Epochs(epochs / (1 + batch / critical), critical)
