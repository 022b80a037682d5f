"""Bring bands of very different brightness to one scale.

    scale = Standard.of(train.images)                       # mean 0, standard deviation 1 in every band
    scale = Percentile.of(train.images, low=2, high=98)     # these percentiles of every band to 0 and 1, clipped
    scale(images)                                           # float32, of the shape that images has

Measure on training images only; what was measured is two small arrays, to be kept with the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

Images: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.float32]
"""(..., bands, height, width)."""
PerBand: TypeAlias = npt.NDArray[np.float32]
"""(bands,)"""


@final
@dataclass(frozen=True)
class Standard:
    """Subtract the mean of each band and divide by its standard deviation."""

    mean: PerBand
    deviation: PerBand

    @classmethod
    def of(cls, images: Images) -> Standard:
        """Measured over all pixels of (n, bands, height, width) images."""
        pixels = _by_band(images)
        return cls(pixels.mean(axis=1, dtype=np.float64).astype(np.float32), _nonzero(pixels.std(axis=1)))

    def __call__(self, images: Images) -> npt.NDArray[np.float32]:
        """Scaled images."""
        return (images - _on_images(self.mean)) / _on_images(self.deviation)


@final
@dataclass(frozen=True)
class Percentile:
    """Map one percentile of each band to 0 and another to 1, and clip: clouds and glint do not stretch the scale."""

    low: PerBand
    high: PerBand

    @classmethod
    def of(cls, images: Images, *, low: float = 2.0, high: float = 98.0) -> Percentile:
        """Measured over all pixels of (n, bands, height, width) images. Raises ``ValueError`` unless low < high."""
        if not 0 <= low < high <= 100:
            raise ValueError(f"low={low:g}, high={high:g}: percentiles need 0 <= low < high <= 100")
        bounds = np.percentile(_by_band(images), [low, high], axis=1).astype(np.float32)
        return cls(bounds[0], bounds[0] + _nonzero(bounds[1] - bounds[0]))

    def __call__(self, images: Images) -> npt.NDArray[np.float32]:
        """Scaled images."""
        low, high = _on_images(self.low), _on_images(self.high)
        return np.clip((images - low) / (high - low), 0, 1)


def _by_band(images: Images) -> npt.NDArray[np.float32]:
    return np.moveaxis(images, -3, 0).reshape(images.shape[-3], -1).astype(np.float32)


def _on_images(values: PerBand) -> PerBand:
    return values[:, None, None]


def _nonzero(spread: npt.NDArray[np.floating]) -> PerBand:
    """A band without any contrast is left as it is."""
    return np.where(spread > 0, spread, 1).astype(np.float32)
