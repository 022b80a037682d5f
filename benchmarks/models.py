"""The three networks whose steps are timed, each with a batch of random data that a worker makes once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import final

import torch
from torch import nn


@final
@dataclass(frozen=True)
class Task:
    """A network, its data, and how its step must compare with DDP's."""

    title: str
    network: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    most: float

    def optimizer(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)


def make(name: str) -> Task:
    """``large``, ``tiny`` or ``cnn``; the same weights and the same kind of data every time."""
    torch.manual_seed(0)
    if name == "large":
        network = _mlp(784, 2048, 2048, 2048, 10)
        return Task("MLP 784-2048-2048-2048-10, 40 MB, batch 64", network, torch.rand(64, 784), _labels(64), 0.75)
    if name == "state":
        network = _mlp(784, 2300, 2300, 2300, 10)
        return Task("MLP of 50 MB and as much momentum", network, torch.rand(16, 784), _labels(16), 1.0)
    if name == "tiny":
        return Task("MLP 64-64-10, batch 32", _mlp(64, 64, 10), torch.rand(32, 64), _labels(32), 0.6)
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 90), nn.ReLU(), nn.Linear(90, 10),
    )  # fmt: skip
    return Task("CNN, 1.2 MB, batch 32", network, torch.rand(32, 1, 28, 28), _labels(32), 1.0)


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _labels(count: int) -> torch.Tensor:
    return torch.randint(0, 10, (count,))
