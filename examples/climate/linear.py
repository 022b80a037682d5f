"""The linear model of a pixel that a network must beat: the fields there, their squares, and both smoothed.

model = fitted(load(folder, "train"), weights=[1.0, 17.0, 9.0])
linear_iou(model, load(folder, "validation"))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from scipy.ndimage import uniform_filter
from torch.nn.functional import cross_entropy

from examples.climate.fields import Array
from examples.climate.metrics import counts, iou

EVERY = 4
"""Of the pixels of the training set, one in so many."""

States = Iterable[tuple[Array, Array]]


def features(image: Array) -> torch.Tensor:
    """The numbers that a pixel is judged by, (pixels, 4 x channels)."""
    smooth = uniform_filter(image, (0, 5, 5), mode=("nearest", "nearest", "wrap"))
    every = np.concatenate([image, smooth, image**2, smooth**2])
    return torch.from_numpy(every.reshape(len(every), -1).T)


def fitted(states: States, weights: Sequence[float]) -> torch.nn.Module:
    """Multinomial logistic regression, whose weighted cross entropy is least."""
    seen = [(features(image)[::EVERY], torch.from_numpy(labels.ravel()[::EVERY])) for image, labels in states]
    x, y = (torch.cat(each) for each in zip(*seen, strict=True))
    scale = torch.nn.BatchNorm1d(x.shape[1], affine=False, momentum=None)  # subtracts means, divides by deviations
    scale(x)
    model = torch.nn.Sequential(scale.eval(), torch.nn.Linear(x.shape[1], len(weights)))
    for each in model.parameters():
        torch.nn.init.zeros_(each)
    descent = torch.optim.LBFGS(model.parameters(), max_iter=60, line_search_fn="strong_wolfe")
    of_pixel = torch.tensor(weights)[y]

    def loss() -> torch.Tensor:
        descent.zero_grad()
        mean = (cross_entropy(model(x), y, reduction="none") * of_pixel).mean()
        mean.backward()
        return mean.detach()

    descent.step(loss)
    return model


@torch.no_grad()
def linear_iou(model: torch.nn.Module, states: States) -> list[float]:
    """IoU of each class."""
    total = torch.zeros(3, 3, dtype=torch.int64)
    for image, labels in states:
        total += counts(model(features(image)).argmax(1), torch.from_numpy(labels))
    return iou(total.tolist())
