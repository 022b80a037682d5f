"""Ridge regression on power spectra and moments: what a network must beat, on the same volumes.

    said = ridge(summaries(x_train), y_train, summaries(x_test))

The summaries are more than textbooks ask for: spectra of the density and of its logarithm, in eight bins at each
redshift, moments of both to the fourth, and the share of empty space.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from examples.common.volumes import Array, spectrum

BINS = 8
EMPTY = 0.1
"""Density, in units of the mean, below which space counts as empty."""


def summaries(x: Array) -> Array:
    """Volumes x summaries; ``x`` are logarithms, log(1 + density), volumes x cells³ x redshifts."""
    return np.array([_of_volume(volume) for volume in x])


def _of_volume(volume: Array) -> list[float]:
    found: list[float] = []
    cells = volume.shape[0]
    bins = np.linspace(2 * np.pi * 0.99, 1.2 * np.pi * cells, BINS + 1)  # in units of one over the length of the box
    for log in np.moveaxis(volume.astype(np.float64), -1, 0):
        density = np.expm1(log)
        for field in (density, log):
            spread = float(field.std())
            central = (field - field.mean()) / spread
            found += np.log(spectrum(field, 1.0, bins)).tolist()
            found += [float(field.mean()), spread, float((central**3).mean()), float((central**4).mean())]
        found.append(float((density < EMPTY).mean()))
    return found


def ridge(train: Array, labels: Array, test: Array) -> Array:
    """Labels of the test volumes; the strength is chosen by leaving one of the training volumes out."""
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 4, 17)))
    return model.fit(train, labels).predict(test)  # type: ignore[no-any-return]
