"""Learning rates of larger batches: the table of base rates, the rules that scale them, AdaScale's gain.

>>> RULES["linear"].scale(8192 / 512)
16.0
>>> RULES["sqrt"].scale(8192 / 512)
4.0
>>> round(gain(trace=1000.0, norm2=1.0, base_batch=512, batch=8192), 3)
2.632
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from farandole.errors import UsageError

BASE_RATES = {
    "adadelta": 1.0,
    "adagrad": 1e-2,
    "adam": 1e-3,
    "adamw": 1e-3,
    "lamb": 5e-3,
    "rmsprop": 1e-3,
    "sgd": 1e-2,
}
"""Usual first rate of each optimizer at its base batch, to be tuned. LAMB's rate is a choice of this library, for
steps of some 512 samples; LARS has no rate that fits more than one network."""


@final
@dataclass(frozen=True)
class Rule:
    """Multiply the rate by ``ratio ** exponent``; the ratio is that of the batches, or the measured gain."""

    exponent: float
    source: str
    longer_warmup: bool = False
    """The epochs of the warm-up are multiplied by the ratio of the batches."""
    measured: bool = False
    """The ratio is AdaScale's gain, and the schedule runs on the gains' sum."""

    def scale(self, ratio: float) -> float:
        """Factor of the base rate."""
        return math.pow(ratio, self.exponent)


RULES = {
    "linear": Rule(1.0, "Goyal et al. 2017, arXiv 1706.02677, section 2.1"),
    "sqrt": Rule(0.5, "Krizhevsky 2014, arXiv 1404.5997, section 5; for Adam: Malladi et al. 2022, arXiv 2205.10287"),
    "legw": Rule(0.5, "You et al. 2019, arXiv 1901.08256, section 3", longer_warmup=True),
    "adascale": Rule(1.0, "Johnson et al. 2020, arXiv 2007.05105, section 3", measured=True),
    "sqrt_adascale": Rule(0.5, "Qiao et al. 2021 (Pollux, OSDI), section 3.2, for Adam and its kin", measured=True),
}


def rule_named(name: str) -> Rule:
    """One of ``RULES``; raises ``UsageError`` with all names."""
    if name not in RULES:
        raise UsageError(f"rule={name!r}: expected one of {', '.join(RULES)}")
    return RULES[name]


def gain(trace: float, norm2: float, base_batch: float, batch: float) -> float:
    """Number of steps of ``base_batch`` that equal one step of ``batch`` samples: (s2 + m2) / (s2/k + m2).

    ``trace`` is the trace of the covariance of one sample's gradient and ``norm2`` the squared norm of the mean
    gradient, so s2 = trace / base_batch, m2 = norm2 and k = batch / base_batch (AdaScale, arXiv 2007.05105, equation
    3). Estimates of both may be negative; the gain is limited to the range from 1 to k.
    """
    noise, signal, ratio = max(0.0, trace) / base_batch, max(0.0, norm2), batch / base_batch
    if noise + signal == 0:
        return 1.0
    low, high = min(1.0, ratio), max(1.0, ratio)
    return min(high, max(low, (noise + signal) / (noise / ratio + signal)))
