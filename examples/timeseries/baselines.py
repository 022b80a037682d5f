"""Forecasts that a network has to beat, and one that it cannot: functions of lags, windows x lags x sites.

Each returns windows x horizons x sites, in standard deviations of the climate, as do the windows.
"""

from __future__ import annotations

import numpy as np

from examples.timeseries.data import NOISE, Task, Windows
from examples.timeseries.lorenz96 import Array, a_day_later


def errors(found: Array, targets: Array) -> list[float]:
    """Root of the mean squared error at each horizon."""
    return [float(each) for each in np.sqrt(((found - targets) ** 2).mean(axis=(0, 2), dtype=np.float64))]


def persistence(lags: Array, task: Task) -> Array:
    """Tomorrow is as today."""
    return np.repeat(lags[:, -1:], len(task.horizons), axis=1)


def linear(lags: Array, train: Windows) -> Array:
    """Linear autoregression by least squares, of all sites at all lags, fitted on the windows of the network."""
    x, y = train.all()
    known, asked = (np.hstack([each.reshape(len(each), -1), np.ones((len(each), 1))]) for each in (x, lags))
    found: Array = asked @ np.linalg.lstsq(known, y.reshape(len(y), -1))[0]
    return found.reshape(len(lags), *y.shape[1:])


def true_model(lags: Array, train: Windows, members: int = 16) -> Array:
    """Lorenz-96 itself, from what was observed last: the mean of an ensemble of such states with their noise.

    Who knows the equations and not the state can do no better than about that. The mean of an ensemble goes to the
    climate as its members part, which one run does not (Leith 1974, Mon. Wea. Rev. 102, 409).
    """
    last, horizons = lags[:, -1].astype(np.float64), train.task.horizons
    perturbed = last + NOISE * np.random.default_rng(0).normal(size=(members, *last.shape))
    states, found = train.mean + train.deviation * perturbed, []
    for day in range(1, max(horizons) + 1):
        states = a_day_later(states)
        if day in horizons:
            found.append((states.mean(axis=0) - train.mean) / train.deviation)
    return np.stack(found, axis=1)
