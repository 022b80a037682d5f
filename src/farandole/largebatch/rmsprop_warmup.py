"""Share of SGD in an update during the transition from RMSprop: Akiba, Suzuki, Fukuda 2017, arXiv 1711.04325.

>>> [round(sgd_share(epoch, center=10.0, period=5.0), 3) for epoch in (0, 5, 10, 12.5, 90)]
[0.009, 0.068, 0.5, 1.0, 1.0]
"""

from __future__ import annotations

import math


def sgd_share(epoch: float, center: float = 10.0, period: float = 5.0) -> float:
    """α_SGD: grows exponentially to ½ at ``center``, then linearly, and is 1 from ``center + period / 2`` on.

    The first part is ½·exp(2(e−c)/p); ½ + (e−c)/p continues it with the same slope, and ends at 1. Some texts give
    ½ + 2(e−c)/p for the second part: then α_SGD would exceed 1 and jump back.
    """
    if epoch < center:
        return 0.5 * math.exp(2.0 * (epoch - center) / period)
    return min(0.5 + (epoch - center) / period, 1.0)


def rmsprop_share(share: float, rmsprop_lr: float, lr: float) -> float:
    """α_RMSprop = (1 − α_SGD)·η_RMSprop / η_SGD: the remaining share for RMSprop, at a rate of its own."""
    return (1.0 - share) * rmsprop_lr / lr if lr else 0.0
