"""Decays of a learning rate over the training: one small class per shape.

    >>> Polynomial(power=2.0).factor(epoch=45.0, epochs=90.0)
    0.25
    >>> Piecewise({30.0: 0.1, 60.0: 0.01}).factor(epoch=60.0, epochs=90.0)
    0.01

The peak rate is multiplied by the factor after ``epoch`` of ``epochs`` epochs. Epochs count from the beginning of the
training, warm-up included, as in the papers; after the last epoch the factor stays constant.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from farandole.errors import UsageError


class Decay(ABC):
    """A function of the epoch, fractions included."""

    def factor(self, epoch: float, epochs: float) -> float:
        """Factor of the rate after ``epoch`` of ``epochs`` epochs."""
        return self._factor(min(max(epoch, 0.0), epochs), epochs)

    @abstractmethod
    def _factor(self, epoch: float, epochs: float) -> float:
        """Factor of the rate for an epoch within the training."""


@final
@dataclass(frozen=True)
class Constant(Decay):
    """No decay."""

    def _factor(self, epoch: float, epochs: float) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Polynomial(Decay):
    """From 1 to ``end`` as (1 - t/T)^power; power 2 is LARS's (You et al. 2017, arXiv 1708.03888, section 5)."""

    power: float = 2.0
    end: float = 0.0

    def __post_init__(self) -> None:
        if self.power <= 0 or not 0 <= self.end <= 1:
            raise UsageError(f"{self}: power must be above 0, and end between 0 and 1")

    def _factor(self, epoch: float, epochs: float) -> float:
        return self.end + (1.0 - self.end) * math.pow(1.0 - epoch / epochs, self.power)


@final
@dataclass(frozen=True)
class Exponential(Decay):
    """Factor ``rate`` for every ``every`` epochs: in stairs or, with ``staircase=False``, gradually."""

    rate: float = 0.97
    every: float = 2.4
    staircase: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1 or self.every <= 0:
            raise UsageError(f"{self}: rate must be above 0 and at most 1, and every above 0 epochs")

    def _factor(self, epoch: float, epochs: float) -> float:
        steps = epoch / self.every
        return math.pow(self.rate, math.floor(steps) if self.staircase else steps)


@final
@dataclass(frozen=True)
class Piecewise(Decay):
    """Constant factor from each epoch on; the default is that of Goyal et al. 2017 (arXiv 1706.02677, section 5.1)."""

    factors: Mapping[float, float] = field(default_factory=lambda: {30.0: 0.1, 60.0: 0.01, 80.0: 0.001})

    def __post_init__(self) -> None:
        if any(epoch <= 0 for epoch in self.factors) or any(factor < 0 for factor in self.factors.values()):
            raise UsageError(f"{self}: epochs must be above 0, and factors 0 or more")

    def _factor(self, epoch: float, epochs: float) -> float:
        return self.factors[max(begun)] if (begun := [e for e in self.factors if e <= epoch]) else 1.0


@final
@dataclass(frozen=True)
class Cosine(Decay):
    """From 1 to ``end`` along half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983, equation 5, no restart)."""

    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.end <= 1:
            raise UsageError(f"{self}: end must be between 0 and 1")

    def _factor(self, epoch: float, epochs: float) -> float:
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
