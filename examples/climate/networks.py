"""Tiramisu (Jégou et al. 2017, arXiv:1611.09326) and DeepLabv3+ (Chen et al. 2018, arXiv:1802.02611), small.

    model = tiramisu(channels=8, classes=3)             # (n, 8, 96, 144) -> (n, 3, 96, 144); sides: multiples of 8

As Kurth et al. 2018 (arXiv:1810.01993, section V-B5) have them, with fewer channels, and normalization by groups of
channels of one sample: what a rank computes does not depend on which samples it has.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn


@final
class Beside(nn.ModuleList):
    """What each branch makes of the input, one beside the other; what is of one pixel counts for all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels of all branches together."""
        made = [branch(x) for branch in self]
        return torch.cat([each.expand(-1, -1, *made[0].shape[2:]) for each in made], 1)


def normalized(channels: int) -> list[nn.Module]:
    """Normalization by groups of channels, then ReLU."""
    return [nn.GroupNorm(4, channels), nn.ReLU(inplace=True)]


def level(width: int, growth: int, levels: int) -> nn.Sequential:
    """Two layers that each see all before and add ``growth`` channels; around so many ``levels`` of half the size."""
    layers = [
        [*normalized(each), nn.Conv2d(each, growth, 3, padding=1, bias=False)] for each in (width, width + growth)
    ]
    dense = nn.Sequential(*(Beside([nn.Identity(), nn.Sequential(*layer)]) for layer in layers))
    if not levels:
        return dense
    wide = width + 2 * growth
    shrink = [*normalized(wide), nn.Conv2d(wide, wide, 2, stride=2, bias=False)]
    below = level(wide, growth, levels - 1)
    grow = nn.ConvTranspose2d(wide + (6 if levels > 1 else 2) * growth, 2 * growth, 2, stride=2)
    beside = Beside([nn.Sequential(*shrink, below, grow), nn.Identity()])
    return nn.Sequential(dense, beside, level(wide + 2 * growth, growth, 0))


def tiramisu(channels: int, classes: int, growth: int = 8, levels: int = 3) -> nn.Sequential:
    """Scores of classes for every pixel."""
    stem = [nn.InstanceNorm2d(channels), nn.Conv2d(channels, 2 * growth, 3, padding=1, bias=False)]
    body = level(2 * growth, growth, levels)
    return nn.Sequential(*stem, body, *normalized(8 * growth), nn.Conv2d(8 * growth, classes, 1))


def convolved(before: int, after: int, size: int = 3, stride: int = 1, rate: int = 1) -> nn.Sequential:
    """Convolution, normalization, ReLU."""
    convolution = nn.Conv2d(before, after, size, stride, rate * (size // 2), rate, bias=False)
    return nn.Sequential(convolution, *normalized(after))


@final
class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, before: int, after: int, stride: int = 1, rate: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(convolved(before, after, 3, stride), convolved(after, after, rate=rate)[:-1])
        self.around = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum, above 0."""
        return torch.relu(self.body(x) + self.around(x))


def deeplab(channels: int, classes: int, width: int = 16, wide: int = 64) -> nn.Sequential:
    """Scores of classes for every pixel."""
    full = [nn.InstanceNorm2d(channels), convolved(channels, width)]
    half = Residual(width, width, 2)
    encoder = [Residual(width, wide // 2, 2), Residual(wide // 2, wide, 2), Residual(wide, wide, rate=2)]
    rates = [convolved(wide, width, 1), *(convolved(wide, width, rate=rate) for rate in (2, 4, 6))]
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, width, 1), nn.ReLU())
    to_half = [convolved(5 * width, 2 * width, 1), nn.ConvTranspose2d(2 * width, width, 4, 4)]
    below = nn.Sequential(*encoder, Beside([*rates, pooled]), *to_half)
    below = nn.Sequential(half, Beside([below, nn.Identity()]), nn.ConvTranspose2d(2 * width, width, 2, 2))
    body = [*full, Beside([below, nn.Identity()]), convolved(2 * width, width)]
    return nn.Sequential(*body, nn.Conv2d(width, classes, 1))
