"""Volumes of the universe: matter that a linear power spectrum moves, counted in the cells of a periodic box.

    cosmology = drawn(seed=7)                                  # Omega_m, sigma_8 and n_s of one volume
    counts = volume(cosmology, Box(cells=32), seed=7)          # int16, 32 x 32 x 32 x 2 redshifts

A Gaussian field with the spectrum of Eisenstein and Hu (1998, astro-ph/9709112) displaces one particle a cell by
Zel'dovich's approximation (1970, A&A 5, 84), with the growth of Carroll, Press and Turner (1992, ARA&A 30, 499); clouds
in cells (Hockney and Eastwood, Computer Simulation Using Particles, 1981) turn particles into densities.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

THETA = 2.7255 / 2.7
"""Temperature of the microwave background, in 2.7 K."""
UNITS = 64
"""Counts that a particle has: a cloud may give a cell a part of it, and counts are integers."""
VOLUMES_OF_A_SEED = 1_000_000
"""Volumes of data sets with different seeds are seeded so far apart, and none is in two of them."""
RANGES = {"omega_m": (0.2, 0.4), "sigma_8": (0.6, 1.0), "n_s": (0.8, 1.1)}
"""Parameters that a volume is drawn with, uniformly."""


@final
@dataclass(frozen=True)
class Cosmology:
    """A flat universe with a cosmological constant: ``Cosmology(omega_m=0.3, sigma_8=0.8, n_s=0.96)``."""

    omega_m: float = 0.3
    sigma_8: float = 0.8
    n_s: float = 0.96
    h: float = 0.7
    omega_b: float = 0.045

    def labels(self) -> Array:
        """Ω_m, σ_8, n_s and h as four float32, scaled as in the benchmark: each range is -1 to 1; h, which is fixed, 0.

        >>> Cosmology(omega_m=0.4, sigma_8=0.8, n_s=0.8).labels().tolist()
        [1.0, 0.0, -1.0, 0.0]
        """
        scaled = [(2 * getattr(self, name) - low - high) / (high - low) for name, (low, high) in RANGES.items()]
        return np.round(np.array([*scaled, 0.0]), 12).astype(np.float32)


@final
@dataclass(frozen=True)
class Box:
    """A periodic cube of ``length`` Mpc/h with ``cells`` along each side, seen at some redshifts."""

    cells: int = 16
    length: float = 128.0
    redshifts: tuple[float, ...] = (0.0, 1.5)


def drawn(seed: int) -> Cosmology:
    """Cosmology of the volume with this seed, uniform in ``RANGES``."""
    rng = np.random.default_rng([seed, 1])
    return Cosmology(**{name: float(rng.uniform(low, high)) for name, (low, high) in RANGES.items()})


def transfer(k: Array, cosmology: Cosmology) -> Array:
    """T(k) of cold dark matter and baryons for ``k`` in h/Mpc: Eisenstein and Hu 1998, equations 2 to 24."""
    matter, baryons = cosmology.omega_m * cosmology.h**2, cosmology.omega_b * cosmology.h**2
    share = baryons / matter
    z_eq, k_eq = 2.5e4 * matter / THETA**4, 7.46e-2 * matter / THETA**2  # 2, 3
    b1, b2 = 0.313 * matter**-0.419 * (1 + 0.607 * matter**0.674), 0.238 * matter**0.223
    z_d = 1291 * matter**0.251 / (1 + 0.659 * matter**0.828) * (1 + b1 * baryons**b2)  # 4
    r_d, r_eq = (31.5 * baryons / THETA**4 * 1e3 / z for z in (z_d, z_eq))  # 5
    ratio = (np.sqrt(1 + r_d) + np.sqrt(r_d + r_eq)) / (1 + np.sqrt(r_eq))
    sound = 2 / (3 * k_eq) * np.sqrt(6 / r_eq) * np.log(ratio)  # 6
    silk = 1.6 * baryons**0.52 * matter**0.73 * (1 + (10.4 * matter) ** -0.95)  # 7
    k = k * cosmology.h
    q, ks = k / (13.41 * k_eq), k * sound  # 10
    weight = 1 / (1 + (ks / 5.4) ** 4)  # 18
    alpha_c, beta_c = _cold(matter, share)
    cold = weight * _pressureless(q, 1.0, beta_c) + (1 - weight) * _pressureless(q, alpha_c, beta_c)  # 17
    y = (1 + z_eq) / (1 + z_d)
    root = np.sqrt(1 + y)
    g = y * (-6 * root + (2 + 3 * y) * np.log((root + 1) / (root - 1)))  # 15
    alpha_b = 2.07 * k_eq * sound * (1 + r_d) ** -0.75 * g  # 14
    beta_b = 0.5 + share + (3 - 2 * share) * np.sqrt((17.2 * matter) ** 2 + 1)  # 24
    shifted = ks / (1 + (8.41 * matter**0.435 / ks) ** 3) ** (1 / 3)  # 22, 23
    waves = alpha_b / (1 + (beta_b / ks) ** 3) * np.exp(-((k / silk) ** 1.4))
    baryonic = (_pressureless(q, 1.0, 1.0) / (1 + (ks / 5.2) ** 2) + waves) * np.sinc(shifted / np.pi)  # 21
    return share * baryonic + (1 - share) * cold  # type: ignore[no-any-return]  # 16


def _cold(matter: float, share: float) -> tuple[float, float]:
    """Suppression and shift of the logarithm of cold dark matter: equations 11 and 12."""
    a1 = (46.9 * matter) ** 0.670 * (1 + (32.1 * matter) ** -0.532)
    a2 = (12.0 * matter) ** 0.424 * (1 + (45.0 * matter) ** -0.582)
    b1, b2 = 0.944 / (1 + (458 * matter) ** -0.708), (0.395 * matter) ** -0.0266
    return a1**-share * a2 ** -(share**3), 1 / (1 + b1 * ((1 - share) ** b2 - 1))


def _pressureless(q: Array, alpha: float, beta: float) -> Array:
    """Equations 19 and 20."""
    log, c = np.log(np.e + 1.8 * beta * q), 14.2 / alpha + 386 / (1 + 69.9 * q**1.08)
    return log / (log + c * q**2)  # type: ignore[no-any-return]


def power(k: Array, cosmology: Cosmology) -> Array:
    """Linear P(k) at redshift 0 in (Mpc/h)³ for ``k`` in h/Mpc, with σ_8 in spheres of 8 Mpc/h."""
    grid = np.geomspace(1e-4, 20.0, 600)
    x = 8 * grid
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    shape = grid**cosmology.n_s * transfer(grid, cosmology) ** 2
    variance = np.trapezoid(shape * window**2 * grid**3 / (2 * np.pi**2), np.log(grid))
    return k**cosmology.n_s * transfer(k, cosmology) ** 2 * cosmology.sigma_8**2 / variance  # type: ignore[no-any-return]


def growth(cosmology: Cosmology, z: float) -> float:
    """D(z), 1 at redshift 0: Carroll, Press and Turner 1992, equation 29.

    >>> round(growth(Cosmology(omega_m=0.3), 1.5), 3)
    0.501
    """

    def suppression(z: float) -> float:
        expansion = cosmology.omega_m * (1 + z) ** 3 + 1 - cosmology.omega_m
        matter, vacuum = cosmology.omega_m * (1 + z) ** 3 / expansion, (1 - cosmology.omega_m) / expansion
        return float(2.5 * matter / (matter ** (4 / 7) - vacuum + (1 + matter / 2) * (1 + vacuum / 70)))

    return suppression(z) / suppression(0.0) / (1 + z)


def waves(box: Box) -> tuple[list[Array], Array]:
    """Components of the wave vectors of a real transform, and their squared length, which is 1 for the mean."""
    step, spacing = 2 * np.pi / box.length, 1 / box.cells
    whole = np.fft.fftfreq(box.cells, spacing) * step
    half = np.fft.rfftfreq(box.cells, spacing) * step
    parts = [whole[:, None, None], whole[None, :, None], half[None, None, :]]
    square = np.asarray(sum(part**2 for part in parts))
    square[0, 0, 0] = 1.0
    return parts, square


def displacement(cosmology: Cosmology, box: Box, seed: int) -> Array:
    """Zel'dovich displacement at redshift 0, of the particle in the corner of each cell: 3 x cells³, in Mpc/h."""
    parts, square = waves(box)
    rng = np.random.default_rng([seed, 2])
    noise = np.fft.rfftn(rng.standard_normal((box.cells,) * 3))
    density = noise * np.sqrt(power(np.sqrt(square), cosmology) * (box.cells / box.length) ** 3)
    density[0, 0, 0] = 0.0
    return np.stack([np.fft.irfftn(1j * part / square * density, s=(box.cells,) * 3, axes=(0, 1, 2)) for part in parts])


def deposit(position: Array, cells: int) -> Array:
    """Particles in each cell, cells³, by clouds of the size of one; positions, 3 x particles, are in cells."""
    corner = np.floor(position).astype(np.int64)
    part = position - corner
    density = np.zeros(cells**3)
    for shift in itertools.product((0, 1), repeat=3):
        weight, index = np.ones(position.shape[1]), np.zeros(position.shape[1], np.int64)
        for axis, by in enumerate(shift):
            weight = weight * (part[axis] if by else 1 - part[axis])
            index = index * cells + (corner[axis] + by) % cells
        density += np.bincount(index, weight, cells**3)
    return density.reshape((cells,) * 3)


def volume(cosmology: Cosmology, box: Box, seed: int) -> Array:
    """Counts in the cells of a box, int16, cells x cells x cells x redshifts: 64 for the mean density.

    The same seed gives the same phases to any cosmology. Counts above 32,767 are cut off there.
    """
    moved = displacement(cosmology, box, seed).reshape(3, -1) * box.cells / box.length
    at = np.indices((box.cells,) * 3).reshape(3, -1)
    seen: list[Array] = [deposit(at + growth(cosmology, z) * moved, box.cells) for z in box.redshifts]
    counts: Array = np.rint(np.stack(seen, axis=-1) * UNITS).clip(0, 32767).astype(np.int16)
    return counts


def spectrum(field: Array, length: float, bins: Array) -> Array:
    """Mean power in bins of wave number (edges, h/Mpc) of a periodic field of two or three dimensions.

    In (Mpc/h)^dimensions, of the field over its mean less one; a bin without a mode is NaN.
    """
    cells, dimensions = field.shape[0], field.ndim
    modes = np.fft.fftn(field / field.mean() - 1)
    parts = np.meshgrid(*[np.fft.fftfreq(cells, 1 / cells) * 2 * np.pi / length] * dimensions, indexing="ij")
    k = np.sqrt(sum(part**2 for part in parts)).ravel()
    measured = np.abs(modes.ravel()) ** 2 * length**dimensions / float(cells) ** (2 * dimensions)
    counted = np.histogram(k, bins)[0]
    with np.errstate(invalid="ignore"):
        return np.histogram(k, bins, weights=measured)[0] / counted  # type: ignore[no-any-return]
