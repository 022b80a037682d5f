"""Intersection over union of each class, exact over any number of ranks: from counts of pixels, which ranks add up.

    total = torch.zeros(3, 3, dtype=torch.int64)
    for images, labels in my_part_of_the_states:
        total += counts(model(images).argmax(1), labels)
    iou(hvd.allreduce(total, op=hvd.Sum).tolist())              # the same on every rank

The mean of the ranks' IoU would be another number, as soon as one has more cyclones than another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def counts(said: torch.Tensor, labels: torch.Tensor, classes: int = 3) -> torch.Tensor:
    """How many pixels of each class (rows) were said to be of each (columns); int64."""
    pairs = labels.reshape(-1) * classes + said.reshape(-1)
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def iou(pixels: Sequence[Sequence[int]]) -> list[float]:
    """Pixels that are of a class and said to be, over those that are either; 1 for a class that nobody sees."""
    found = []
    for number, row in enumerate(pixels):
        right, either = row[number], sum(row) + sum(each[number] for each in pixels) - row[number]
        found.append(right / either if either else 1.0)
    return found
