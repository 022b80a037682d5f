"""Generator and discriminator: the DCGAN of CosmoGAN (Mustafa et al. 2019, arXiv 1706.02390), for periodic maps.

    generator = Generator(width=32)                     # (maps, 64) -> (maps, 1, 32, 32)
    discriminator = Discriminator(width=32)             # -> logits of being real

Convolutions go around the end, those of the discriminator have norm 1 (Miyato et al. 2018, arXiv 1802.05957). It sees
how much the maps of a group differ (Karras et al. 2018, arXiv 1710.10196, section 3).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any, final

import torch
from torch import nn
from torch.nn.functional import leaky_relu, pad, relu
from torch.nn.utils.parametrizations import spectral_norm

LATENT, GROUP, SLOPE = 64, 8, 0.2


@final
class Generator(nn.Module):
    """Maps out of normal noise; ``norm`` makes the layers that normalize, ``levels`` doublings of 4 x 4 cells."""

    def __init__(self, width: int = 32, levels: int = 3, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        channels = [width * 2 ** (levels - 1 - level) for level in range(levels)]
        self.first = nn.Linear(LATENT, channels[0] * 16, bias=False)
        self.norms = nn.ModuleList(norm(count) for count in channels)
        self.doublings = nn.ModuleList(
            nn.ConvTranspose2d(before, after, 4, stride=2, padding=3, bias=after == 1)  # of a map wrapped by one cell
            for before, after in zip(channels, [*channels[1:], 1], strict=True)
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """See ``Module``."""
        x = self.first(noise).view(len(noise), -1, 4, 4)
        for normalize, double in zip(self.norms, self.doublings, strict=True):
            x = double(pad(relu(normalize(x)), (1, 1, 1, 1), mode="circular"))
        return torch.tanh(x)


@final
class Discriminator(nn.Module):
    """Logit of each map being a real one."""

    def __init__(self, width: int = 32, levels: int = 3) -> None:
        super().__init__()
        channels = [1, *(width * 2**level for level in range(levels))]
        halve: Any = {"kernel_size": 4, "stride": 2, "padding": 1, "padding_mode": "circular"}
        self.halvings = nn.ModuleList(
            spectral_norm(nn.Conv2d(before, after, **halve)) for before, after in itertools.pairwise(channels)
        )
        self.last = spectral_norm(nn.Linear((channels[-1] + 1) * 16, 1))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """See ``Module``."""
        x = maps
        for halve in self.halvings:
            x = leaky_relu(halve(x), SLOPE)
        return self.last(torch.cat([x, spread(x)], dim=1).flatten(1))[:, 0]  # type: ignore[no-any-return]


def spread(x: torch.Tensor) -> torch.Tensor:
    """Mean standard deviation of the features within groups of eight maps, as a channel.

    Groups are neighbours in a batch, so that workers with multiples of eight see those that one worker would.
    """
    groups = x.split(GROUP)
    found = [(group.var(dim=0, unbiased=False) + 1e-8).sqrt().mean().expand(len(group)) for group in groups]
    return torch.cat(found)[:, None, None, None].expand(-1, 1, *x.shape[2:])


@torch.no_grad()
def average(mean: nn.Module, model: nn.Module, keep: float) -> None:
    """Let the weights of ``mean`` be ``keep`` parts of themselves and the rest of those of ``model``."""
    for old, new in zip(mean.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 1 - keep)


def untrained(seed: int, norm: Callable[[int], nn.Module], width: int) -> tuple[Generator, Generator, Discriminator]:
    """Generator, its mean, and discriminator.

    Weights are those of PyTorch: with the .02 of DCGAN made maps stay faint for five hundred steps of such small rates.
    """
    torch.manual_seed(seed)
    generator, discriminator = Generator(width, norm=norm), Discriminator(width)
    return generator, copy.deepcopy(generator), discriminator
