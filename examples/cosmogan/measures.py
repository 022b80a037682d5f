"""How like real maps made ones are: spectra, pixels, how much they vary, and whether they are copies.

found = compared(made, real)                    # maps x rows x columns, -1 to 1
found["error"], found["ks"], found["spread"]
likeness(made, train)                           # of each made map, to the training map that it is most like
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import ks_2samp, norm

from examples.common.volumes import Array


def log_spectra(maps: Array) -> Array:
    """Logarithm of the power in rings of wave number 1, 2, ... below the Nyquist's, maps x rings."""
    cells = maps.shape[-1]
    modes = np.fft.fft2(maps - maps.mean(axis=(1, 2), keepdims=True)) / cells**2
    wave = np.fft.fftfreq(cells, 1 / cells)
    ring = np.rint(np.hypot(wave[:, None], wave[None, :])).astype(int).ravel()
    powers = (np.abs(modes) ** 2).reshape(len(maps), -1)
    return np.log(np.stack([powers[:, ring == each].mean(axis=1) for each in range(1, cells // 2)], axis=1) + 1e-12)


def compared(made: Array, real: Array) -> dict[str, float]:
    """Made maps beside real ones.

    ``error``: difference of mean log P without its sign, mean over the rings; ``inside``: share of the rings at which
    that is less than what one real map differs from the mean by; ``spread``: standard deviation of log P over made
    maps, in units of that over real ones; ``ks``: Kolmogorov and Smirnov's largest difference of the distributions of
    pixels.
    """
    ours, theirs = log_spectra(made), log_spectra(real)
    off, sigma = np.abs(ours.mean(axis=0) - theirs.mean(axis=0)), theirs.std(axis=0)
    return {
        "error": float(off.mean()),
        "inside": float((off <= sigma).mean()),
        "spread": float((ours.std(axis=0) / sigma).mean()),
        "ks": float(ks_2samp(made.ravel(), real.ravel(), method="asymp").statistic),
    }


def likeness(maps: Array, others: Array) -> Array:
    """Highest correlation of each map with any of the others, shifted, turned and reflected in any way.

    Correlations at all shifts come from one Fourier transform (the correlation theorem); 1 is a copy.
    """
    own, known = _unit(maps), _unit(others)
    conjugate = torch.fft.rfft2(known).conj()
    views = [torch.rot90(each, turns, (1, 2)) for each in (own, own.flip(1)) for turns in range(4)]

    def highest(one: torch.Tensor) -> float:
        return float(torch.fft.irfft2(torch.fft.rfft2(one) * conjugate, s=one.shape).amax())

    return np.max([[highest(one) for one in view] for view in views], axis=0)  # type: ignore[no-any-return]


def chance(likenesses: Array, level: float) -> float:
    """What the highest of so many likenesses is below with a probability of ``level``, where no map is a copy.

    Logarithms of likenesses are taken for normal, as those of 200 real maps are: skewness -.02. Gumbel's distribution,
    that of a maximum of many, has a tail that they do not have.
    """
    logs = np.log(likenesses)
    return float(np.exp(norm.ppf(level ** (1 / len(logs)), logs.mean(), logs.std(ddof=1))))


def _unit(maps: Array) -> torch.Tensor:
    found = torch.from_numpy(maps - maps.mean(axis=(1, 2), keepdims=True)).float()
    return found / found.norm(dim=(1, 2), keepdim=True)  # type: ignore[no-any-return]
