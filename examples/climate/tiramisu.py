"""Tiramisu: dense blocks down and up again (Jégou et al. 2017, arXiv:1611.09326), as small as two cores need it.

    model = Tiramisu(channels=8, classes=3)             # (n, 8, 96, 144) -> (n, 3, 96, 144)

Strided convolutions go down, as in Kurth et al. 2018 (arXiv:1810.01993, section V-B5). Normalization is by groups of
channels of one sample: what a rank computes does not depend on which samples it shares a batch with.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn


def normalized(channels: int, groups: int = 4) -> nn.Sequential:
    """Normalization by groups of channels, then ReLU."""
    return nn.Sequential(nn.GroupNorm(groups, channels), nn.ReLU(inplace=True))


@final
class DenseBlock(nn.Module):
    """Layers that each see what came in and what all layers before have added; ``growth`` channels more from each."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        before = [channels + growth * number for number in range(layers)]
        self.layers = nn.ModuleList(
            nn.Sequential(normalized(each), nn.Conv2d(each, growth, 3, padding=1, bias=False)) for each in before
        )
        self.channels = channels + growth * layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What came in, and what was added."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@final
class Tiramisu(nn.Module):
    """Scores of classes for every pixel; height and width are multiples of 2 to the power of ``levels``."""

    def __init__(self, channels: int, classes: int, growth: int = 8, levels: int = 3, layers: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.InstanceNorm2d(channels), nn.Conv2d(channels, 2 * growth, 3, padding=1, bias=False)
        )
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        width, skips = 2 * growth, []
        for _ in range(levels):
            self.down.append(block := DenseBlock(width, growth, layers))
            skips.append(block.channels)
            width = block.channels
            self.shrink.append(nn.Sequential(normalized(width), nn.Conv2d(width, width, 2, stride=2, bias=False)))
        self.bottom = DenseBlock(width, growth, layers)
        width = self.bottom.channels
        for skip in reversed(skips):
            self.grow.append(nn.ConvTranspose2d(width, 2 * growth, 2, stride=2))
            self.up.append(block := DenseBlock(2 * growth + skip, growth, layers))
            width = block.channels
        self.head = nn.Sequential(normalized(width), nn.Conv2d(width, classes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores, (n, classes, height, width)."""
        x, skips = self.stem(x), []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            skips.append(x := block(x))
            x = shrink(x)
        x = self.bottom(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), skips.pop()], 1))
        return self.head(x)  # type: ignore[no-any-return]
