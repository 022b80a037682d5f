"""The model of Lorenz (1996): a ring of sites that behave like the weather along a circle of latitude.

>>> trajectories(members=2, steps=5, seed=0).shape
(2, 5, 8)

E. N. Lorenz, "Predictability: a problem partly solved", Proc. ECMWF Seminar on Predictability, 1996, equation 1. A unit
of time is five days there, so a step of 0.2 is a day.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SITES, FORCING, DAY = 8, 8.0, 0.2
SUBSTEPS = 4
"""Steps of the integration in a day, of 0.05: as Lorenz takes them, right to some thousandths in a day."""
SPIN_UP = 200
"""Days until a trajectory has forgotten where it began."""


def tendency(x: Array) -> Array:
    """Rate of change: dX_k/dt = (X_{k+1} - X_{k-2}) X_{k-1} - X_k + F; sites are the last axis, and a ring."""
    found: Array = (np.roll(x, -1, -1) - np.roll(x, 2, -1)) * np.roll(x, 1, -1) - x + FORCING
    return found


def a_day_later(x: Array) -> Array:
    """Integrate by one day: the classical method of Runge and Kutta, of fourth order."""
    step = DAY / SUBSTEPS
    for _ in range(SUBSTEPS):
        first = tendency(x)
        second = tendency(x + step / 2 * first)
        third = tendency(x + step / 2 * second)
        fourth = tendency(x + step * third)
        x = x + step / 6 * (first + 2 * second + 2 * third + fourth)
    return x


def trajectories(members: int, steps: int, seed: int) -> Array:
    """Daily states of independent trajectories on the attractor: members x steps x sites."""
    x = FORCING + np.random.default_rng(seed).normal(size=(members, SITES))
    found = []
    for _ in range(SPIN_UP + steps):
        found.append(x)
        x = a_day_later(x)
    return np.stack(found[SPIN_UP:], axis=1)
