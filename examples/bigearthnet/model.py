"""A small ResNet for images of many bands: a 12-band stem, basic blocks, one logit per class.

    model = resnet(classes=8, width=16)
    model(torch.randn(4, 12, 30, 30)).shape                 # (4, 8): logits, one independent yes or no each

Stem and blocks are those of He et al. 2016 (arXiv 1512.03385) with batch normalisation; that at the end of every block
starts with a scale of zero, so that blocks begin as their shortcuts (Goyal et al. 2017, arXiv 1706.02677, section 5.1).
"""

from __future__ import annotations

from typing import final

import torch
from torch import nn


@final
class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; ``stride`` 2 halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        nn.init.zeros_(self.norm2.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


def resnet(*, classes: int, bands: int = 12, width: int = 16, blocks: int = 2) -> nn.Sequential:
    """A stem that quarters the image, and ``blocks`` blocks; all but the first halve it and double the channels."""
    widths = [width * 2**i for i in range(blocks)]
    stem = [nn.Conv2d(bands, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    body = [
        Block(a, b, stride=1 if i == 0 else 2)
        for i, (a, b) in enumerate(zip([width, *widths[:-1]], widths, strict=True))
    ]
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(*stem, pool, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
