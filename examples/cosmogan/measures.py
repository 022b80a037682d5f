"""How like real maps made ones are: spectra, pixels, how much they vary, and whether they are copies.

found = compared(made, real)                    # maps x rows x columns, -1 to 1
found.error, found.ks, found.spread
likeness(made, train)                           # of each made map, to the training map that it is most like
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.stats import ks_2samp

from examples.common.volumes import Array


def log_spectra(maps: Array) -> Array:
    """Logarithm of the power in rings of wave number 1, 2, ... below the Nyquist's, maps x rings."""
    cells = maps.shape[-1]
    modes = np.fft.fft2(maps - maps.mean(axis=(1, 2), keepdims=True)) / cells**2
    wave = np.fft.fftfreq(cells, 1 / cells)
    ring = np.rint(np.hypot(wave[:, None], wave[None, :])).astype(int).ravel()
    rings = range(1, cells // 2)
    powers = (np.abs(modes) ** 2).reshape(len(maps), -1)
    return np.log(np.stack([powers[:, ring == each].mean(axis=1) for each in rings], axis=1) + 1e-12)


@final
@dataclass(frozen=True)
class Likeness:
    """Made maps beside real ones, ring by ring; ``off``: difference of mean log P, ``sigma``: of one real map."""

    off: Array
    sigma: Array
    spreads: Array
    """Standard deviation of log P over made maps, in units of that over real ones."""
    ks: float
    """Kolmogorov and Smirnov's largest difference of the distributions of pixels."""

    @property
    def error(self) -> float:
        """Mean difference of log P, without its sign."""
        return float(np.abs(self.off).mean())

    @property
    def inside(self) -> float:
        """Share of the rings at which the difference is less than what one real map differs from the mean by."""
        return float((np.abs(self.off) <= self.sigma).mean())

    @property
    def spread(self) -> float:
        """Mean over the rings."""
        return float(self.spreads.mean())


def compared(made: Array, real: Array) -> Likeness:
    """Compare two sets of maps."""
    ours, theirs = log_spectra(made), log_spectra(real)
    sigma = theirs.std(axis=0)
    ks = float(ks_2samp(made.ravel(), real.ravel(), method="asymp").statistic)
    return Likeness(ours.mean(axis=0) - theirs.mean(axis=0), sigma, ours.std(axis=0) / sigma, ks)


def likeness(maps: Array, train: Array) -> Array:
    """Highest correlation of each map with any of the training maps, shifted, turned and reflected in any way.

    Correlations at all shifts come from one Fourier transform (the correlation theorem); 1 is a copy.
    """
    known = _unit(train)
    conjugate = torch.fft.rfft2(known).conj()
    return np.array([_highest(_unit(one[None])[0], conjugate, known.shape[-2:]) for one in maps])


def _highest(one: torch.Tensor, conjugate: torch.Tensor, shape: torch.Size) -> float:
    best = -1.0
    for reflected in (one, one.flip(0)):
        for turns in range(4):
            turned = torch.fft.rfft2(torch.rot90(reflected, turns))
            best = max(best, float(torch.fft.irfft2(turned * conjugate, s=shape).amax()))
    return best


def _unit(maps: Array) -> torch.Tensor:
    found: torch.Tensor = torch.from_numpy(np.asarray(maps, np.float32))
    found = found - found.mean(dim=(1, 2), keepdim=True)
    found /= found.norm(dim=(1, 2), keepdim=True)
    return found
