"""Hyperspectral scenes out of nothing: parcels of land, each of a class, seen in many narrow bands.

>>> scene = make(seed=0)
>>> scene.cube.shape, scene.labels.shape, len(set(scene.parcels.ravel().tolist()))
((64, 64, 32), (64, 64), 60)

Parcels are the cells of a Voronoi diagram. The spectrum of a class is a slope and four Gaussian features, as absorption
bands are (Sunshine, Pieters and Pratt 1990, J. Geophys. Res. 95, 6955). Each parcel differs from its class by an offset
that is a random walk over the bands, as soil, age and moisture of a field make it: pixels of a parcel are more alike
than those of a class, and nearby ones share what the optics blur, and the light. That is what makes pixels drawn at
random a test that knows its answers (Lange et al. 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter

Array = npt.NDArray[Any]

CLASSES, PARCELS, SIZE, BANDS = 6, 60, 64, 32
OFFSET = 0.06
"""Standard deviation of a parcel's offset at the last band, in units of reflectance: a walk begins at 0."""
BLUR, NOISE, LIGHT = 0.7, 0.01, 0.1
"""Of the optics in pixels, of a pixel in each band, and of the illumination, relative."""


@final
@dataclass(frozen=True)
class Scene:
    """Reflectance, height x width x bands, with the class and the parcel of each pixel; class -1 has no label."""

    cube: Array
    labels: Array
    parcels: Array


def spectra(library: int) -> Array:
    """Reflectance of the classes, classes x bands; scenes of one library are of the same kinds of land."""
    rng = np.random.default_rng((library, 1))
    band = np.linspace(0, 1, BANDS)
    found = 0.3 + 0.15 * (band - 0.5) * rng.normal(size=(CLASSES, 1))
    for _ in range(4):
        center, width = rng.random((CLASSES, 1)), rng.uniform(0.04, 0.15, (CLASSES, 1))
        found = found + rng.normal(0, 0.06, (CLASSES, 1)) * np.exp(-0.5 * ((band - center) / width) ** 2)
    return np.asarray(found)


def make(seed: int, library: int = 0) -> Scene:
    """A scene; the same library and another seed make other parcels, offsets and light."""
    rng = np.random.default_rng((seed, 2))
    sites = rng.random((PARCELS, 2)) * SIZE
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    parcels = np.argmin((y[..., None] - sites[:, 0]) ** 2 + (x[..., None] - sites[:, 1]) ** 2, axis=-1)
    prior = 1 / np.arange(1, CLASSES + 1)
    kinds = rng.choice(CLASSES, PARCELS, p=prior / prior.sum())
    kinds[: 2 * CLASSES] = np.repeat(np.arange(CLASSES), 2)  # two of each at least: one to train on, one to test on
    offsets = OFFSET * np.cumsum(rng.normal(size=(PARCELS, BANDS)), axis=1) / np.sqrt(BANDS)
    cube = gaussian_filter((spectra(library)[kinds] + offsets)[parcels], (BLUR, BLUR, 0))
    light = gaussian_filter(rng.normal(size=(SIZE, SIZE)), 12)
    cube = cube * (1 + LIGHT * light / light.std())[..., None] + rng.normal(0, NOISE, cube.shape)
    return Scene(cube.clip(0).astype(np.float32), kinds[parcels].astype(np.int16), parcels.astype(np.int16))
