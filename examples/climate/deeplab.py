"""DeepLabv3+: residual encoder, convolutions of several rates, decoder (Chen et al. 2018, arXiv:1802.02611).

    model = DeepLab(channels=8, classes=3)              # (n, 8, 96, 144) -> (n, 3, 96, 144)

The net of Kurth et al. 2018 (arXiv:1810.01993, section V-B5) with fewer channels: theirs is a ResNet-50 to a stride of
8, rates 12, 24 and 36, and a decoder of deconvolutions up to full resolution.
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn

from examples.climate.tiramisu import normalized


def convolved(before: int, after: int, size: int = 3, stride: int = 1, rate: int = 1) -> nn.Sequential:
    """Convolution, normalization, ReLU."""
    padding = rate * (size // 2)
    convolution = nn.Conv2d(before, after, size, stride, padding, dilation=rate, bias=False)
    return nn.Sequential(convolution, *normalized(after))


@final
class Residual(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, before: int, after: int, stride: int = 1, rate: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolved(before, after, stride=stride),
            nn.Conv2d(after, after, 3, padding=rate, dilation=rate, bias=False),
            nn.GroupNorm(4, after),
        )
        is_same = before == after and stride == 1
        self.around = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum, above 0."""
        return torch.relu(self.body(x) + self.around(x))


@final
class DeepLab(nn.Module):
    """Scores of classes for every pixel; height and width are multiples of 8."""

    def __init__(self, channels: int, classes: int, width: int = 16, rates: tuple[int, ...] = (2, 4, 6)) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.InstanceNorm2d(channels), convolved(channels, width))
        self.second = Residual(width, width, stride=2)
        self.encoder = nn.Sequential(
            Residual(width, 2 * width, stride=2),
            Residual(2 * width, 4 * width, stride=2),
            Residual(4 * width, 4 * width, rate=2),
        )
        self.parts = nn.ModuleList(
            [convolved(4 * width, width, 1), *(convolved(4 * width, width, rate=rate) for rate in rates)]
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * width, width, 1), nn.ReLU())
        self.joined = convolved((len(rates) + 2) * width, 2 * width, 1)
        self.to_half = nn.ConvTranspose2d(2 * width, width, 4, stride=4)
        self.to_full = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Sequential(convolved(2 * width, width), nn.Conv2d(width, classes, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores, (n, classes, height, width)."""
        full = self.first(x)
        half = self.second(full)
        x = self.encoder(half)
        parts = [part(x) for part in self.parts]
        x = self.joined(torch.cat([*parts, self.pooled(x).expand_as(parts[0])], 1))
        x = torch.cat([self.to_half(x), half], 1)
        return self.head(torch.cat([self.to_full(x), full], 1))  # type: ignore[no-any-return]
