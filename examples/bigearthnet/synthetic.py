"""Sentinel-2-like patches out of nothing: eight kinds of land cover in twelve bands, with labels that are nearly right.

    train = patches(4096, seed=1)                       # always the same ones
    train.images.shape, train.labels.shape              # (4096, 12, 30, 30) uint16, (4096, 8) uint8

A patch shows one to four classes, drawn from a prior with a long tail, in regions that are the argmax of smooth
Gaussian random fields. Every pixel has the spectrum of its class times the texture of its class; vegetation differs
from patch to patch in the red edge and the near infrared (phenology); illumination, haze and the blur of the optics do
the rest. Bands of 20 m and 60 m are averaged over the pixels that they cover. A class is a label where it covers at
least 5 % of the patch, and 3 % of the labels were forgotten. Patch i depends on nothing but the seed and i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from examples.bigearthnet.bands import BANDS, METRES

Floats: TypeAlias = npt.NDArray[np.float32]

CLASSES = ("water", "conifer", "broadleaf", "pasture", "arable", "urban", "peat", "rock")
PRIOR = np.array([0.13, 0.19, 0.14, 0.12, 0.24, 0.09, 0.06, 0.03])
COVERS = np.array([0.45, 0.33, 0.15, 0.07])
"""How often a patch shows one, two, three or four classes."""

SPECTRA = np.array(
    [  # B01    B02    B03    B04    B05    B06    B07    B08    B8A    B09    B11    B12
        [0.060, 0.050, 0.045, 0.030, 0.026, 0.022, 0.021, 0.018, 0.017, 0.015, 0.010, 0.008],
        [0.030, 0.030, 0.041, 0.030, 0.062, 0.145, 0.175, 0.190, 0.200, 0.205, 0.105, 0.052],
        [0.030, 0.034, 0.056, 0.035, 0.088, 0.250, 0.320, 0.345, 0.365, 0.365, 0.185, 0.085],
        [0.040, 0.049, 0.080, 0.060, 0.120, 0.275, 0.335, 0.355, 0.375, 0.375, 0.240, 0.130],
        [0.060, 0.078, 0.108, 0.125, 0.165, 0.215, 0.240, 0.258, 0.278, 0.285, 0.300, 0.215],
        [0.100, 0.118, 0.138, 0.150, 0.168, 0.188, 0.200, 0.215, 0.222, 0.230, 0.240, 0.205],
        [0.040, 0.046, 0.063, 0.066, 0.092, 0.150, 0.172, 0.188, 0.206, 0.212, 0.190, 0.118],
        [0.130, 0.158, 0.190, 0.215, 0.235, 0.248, 0.258, 0.268, 0.278, 0.282, 0.330, 0.295],
    ],
    dtype=np.float32,
)
"""Reflectance by class and band: round numbers of the usual shape, measured by nobody."""

TEXTURE = np.array([0.02, 0.14, 0.10, 0.05, 0.08, 0.22, 0.07, 0.12], dtype=np.float32)
"""Relative brightness between the pixels of a class."""
GRAIN = np.array([2.0, 0.6, 1.0, 2.5, 3.0, 0.4, 1.5, 0.8])
"""Over how many pixels that brightness is alike (standard deviation of the Gaussian)."""
VEGETATION = np.array([0, 1, 1, 1, 1, 0, 1, 0], dtype=np.float32)
SEASON = np.array([0, 0, 0, 0, 0.10, 0.20, 0.25, 0.25, 0.25, 0.25, 0.08, 0.04], dtype=np.float32)
"""Relative change of green vegetation between the extremes of the season, by band."""
HAZE = np.array([1.0, 0.85, 0.6, 0.45, 0.35, 0.3, 0.25, 0.2, 0.18, 0.15, 0.05, 0.03], dtype=np.float32)
"""What haze adds, by band; more at short wavelengths."""

REGION_PIXELS = 5.0
"""Standard deviation of the Gaussian that smooths the fields whose argmax the regions are."""
SMALLEST_AREA, FORGOTTEN = 0.05, 0.03
PIXELS = 30
_BLOCK = 128  # patches made at a time: their fields fit into the cache


@final
@dataclass(frozen=True)
class Patches:
    """``images``: (count, 12, pixels, pixels) uint16, reflectance x 10,000; ``labels``: (count, 8) uint8, 0 or 1."""

    images: npt.NDArray[np.uint16]
    labels: npt.NDArray[np.uint8]


def patches(count: int, *, seed: int, first: int = 0, spectral_gap: float = 1.0) -> Patches:
    """Patches ``first`` to ``first + count - 1`` of the endless sequence that ``seed`` names.

    >>> np.array_equal(patches(8, seed=1).images[5:], patches(3, seed=1, first=5).images)
    True

    ``spectral_gap`` pulls the spectra towards their mean: 1 as they are, 0.5 half as far from it, 0 all the same.
    """
    if count < 1 or first < 0:
        raise ValueError(f"patches({count}, first={first}): there is no such part; count >= 1 and first >= 0")
    blocks = [
        _block(np.arange(start, min(start + _BLOCK, first + count)), seed, spectral_gap)
        for start in range(first, first + count, _BLOCK)
    ]
    return Patches(np.concatenate([b.images for b in blocks]), np.concatenate([b.labels for b in blocks]))


@final
@dataclass(frozen=True)
class _Draws:
    """The random numbers of a block of patches; the first axis is the patch."""

    uniform: npt.NDArray[np.float64]
    """(n, 2 + 2 x classes): number of covers, blur; class preferences; what is forgotten."""
    normal: Floats
    """(n, 3): season, illumination, haze."""
    fields: Floats
    """(n, most covers + 1, pixels, pixels): one field per region, one for texture."""
    noise: Floats
    """(n, bands, pixels, pixels): the sensor's."""


def _draw(indices: npt.NDArray[np.int64], seed: int) -> _Draws:
    square = (PIXELS, PIXELS)
    generators = [np.random.default_rng((seed, int(i))) for i in indices]
    return _Draws(
        np.stack([g.random(2 + 2 * len(CLASSES)) for g in generators]),
        np.stack([g.standard_normal(3, np.float32) for g in generators]),
        np.stack([g.standard_normal((len(COVERS) + 1, *square), np.float32) for g in generators]),
        np.stack([g.standard_normal((len(BANDS), *square), np.float32) for g in generators]),
    )


def _block(indices: npt.NDArray[np.int64], seed: int, spectral_gap: float) -> Patches:
    draws = _draw(indices, seed)
    cover = _cover(draws)
    return Patches(_observed(_surface(draws, cover, spectral_gap), draws), _labels(draws, cover))


def _cover(draws: _Draws) -> npt.NDArray[np.intp]:
    """The class of every pixel, (n, pixels, pixels)."""
    preference = draws.uniform[:, 2 : 2 + len(CLASSES)]
    drawn = np.argsort(np.log(PRIOR) - np.log(-np.log(preference)), axis=1)[:, ::-1]  # without replacement, by prior
    count = 1 + np.searchsorted(np.cumsum(COVERS)[:-1], draws.uniform[:, 0])
    fields = _smooth(draws.fields[:, : len(COVERS)], np.full(len(drawn), REGION_PIXELS))
    absent = np.arange(len(COVERS)) >= count[:, None]
    region = np.where(absent[:, :, None, None], -np.inf, fields).argmax(axis=1)
    return np.take_along_axis(drawn, region.reshape(len(drawn), -1), axis=1).reshape(region.shape)


def _labels(draws: _Draws, cover: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
    area: Floats = (cover[:, None] == np.arange(len(CLASSES))[:, None, None]).mean(axis=(2, 3))
    remembered = draws.uniform[:, 2 + len(CLASSES) :] >= FORGOTTEN
    return ((area >= SMALLEST_AREA) & remembered).astype(np.uint8)


def _surface(draws: _Draws, cover: npt.NDArray[np.intp], spectral_gap: float) -> Floats:
    """Reflectance at the ground, (n, bands, pixels, pixels)."""
    mean = SPECTRA.mean(axis=0)
    spectra = mean + np.float32(spectral_gap) * (SPECTRA - mean)
    season = np.tanh(draws.normal[:, 0])[:, None, None] * VEGETATION[:, None] * SEASON  # (n, classes, bands)
    of_patch = spectra * (1 + season)
    grains = [_smooth(draws.fields[:, -1], np.full(len(cover), grain)) for grain in GRAIN]
    texture = np.take_along_axis(np.stack(grains, axis=1), cover[:, None], axis=1)[:, 0] * TEXTURE[cover]
    pixels = np.take_along_axis(of_patch, cover.reshape(len(cover), -1, 1), axis=1)  # (n, pixels², bands)
    ground = pixels.transpose(0, 2, 1).reshape(len(cover), len(BANDS), PIXELS, PIXELS)
    return np.asarray(ground * (1 + texture[:, None]), dtype=np.float32)


def _observed(ground: Floats, draws: _Draws) -> npt.NDArray[np.uint16]:
    """What the satellite sees of it."""
    light = 1 + 0.05 * draws.normal[:, 1]
    haze = 0.01 * np.abs(draws.normal[:, 2])[:, None] * HAZE
    seen = _smooth(ground, 0.3 + 0.7 * draws.uniform[:, 1], unit_variance=False)
    seen = seen * light[:, None, None, None] + haze[:, :, None, None] + np.float32(0.002) * draws.noise
    for band, metres in enumerate(METRES.values()):
        side = metres // 10
        if side > 1:
            blocks = seen[:, band].reshape(len(seen), PIXELS // side, side, PIXELS // side, side).mean(axis=(2, 4))
            seen[:, band] = blocks.repeat(side, axis=1).repeat(side, axis=2)
    return np.clip(np.rint(seen * 10_000), 0, 65_535).astype(np.uint16)


def _smooth(fields: Floats, sigma: npt.NDArray[np.float64], *, unit_variance: bool = True) -> Floats:
    """Convolve with periodic Gaussians of one standard deviation (in pixels) per patch, and restore the variance."""
    rows, columns = np.fft.fftfreq(PIXELS)[:, None], np.fft.rfftfreq(PIXELS)
    transfer = np.exp(-2 * (np.pi * sigma[:, None, None]) ** 2 * (rows**2 + columns**2))
    transfer = transfer.reshape(len(sigma), *[1] * (fields.ndim - 3), *transfer.shape[1:]).astype(np.float32)
    smooth = np.fft.irfft2(np.fft.rfft2(fields) * transfer, s=(PIXELS, PIXELS))
    if unit_variance:
        smooth = smooth / smooth.std(axis=(-2, -1), keepdims=True)
    return np.asarray(smooth, dtype=np.float32)
