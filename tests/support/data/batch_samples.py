"""Samples that tests of batches load, and steps that change them."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.data.loading.augment import Flip, GaussianNoise, MixUp, Step


class Images:
    """Sample i is an image full of i, with its label and name."""

    def __init__(self, length: int = 53) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = np.full((6, 6, 2), index, np.float32)
        return {"image": image, "label": index, "name": f"image {index}"}


STEPS: list[Step] = [
    MixUp(0.4, fields=("image",)),
    Flip((0, 1), fields=("image",)),
    GaussianNoise(0.1, fields=("image",)),
]


def plain(batch: Any) -> Any:
    """A batch as values that compare."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return (batch.dtype.str, batch.tolist()) if isinstance(batch, np.ndarray) else batch
