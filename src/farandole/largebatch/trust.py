"""Layer-wise learning rates from the norms of a layer's weights and of its gradient.

>>> lars_rate(weights=9.4, gradient=0.135, coefficient=1.0)    # AlexNet's conv3 at the first step
69.62962962962963

If a norm is zero, the rate is 1, as in an optimizer without layer-wise rates.
"""

from __future__ import annotations


def lars_rate(weights: float, gradient: float, coefficient: float, weight_decay: float = 0.0) -> float:
    """λ = η‖w‖ / (‖g‖ + β‖w‖): You, Gitman, Ginsburg 2017, arXiv 1708.03888, equation 6.

    ``coefficient`` is η: 0.001 to 0.02 in practice. Some descriptions leave it out; every step would then change a
    layer by as much as its own norm, and training would diverge.
    """
    if not weights or not gradient:
        return 1.0
    return coefficient * weights / (gradient + weight_decay * weights)


def clipped_rate(rate: float, lr: float) -> float:
    """Factor of the gradients in LARC's mode *clip*: min(λ, γ) / γ, so that λ is at most the ``lr`` γ."""
    return min(rate / lr, 1.0) if lr else 1.0


def lamb_rate(weights: float, update: float) -> float:
    """‖w‖ / ‖u‖, where u is Adam's update with the decay: You et al. 2020, arXiv 1904.00962, algorithm 2, φ(z) = z."""
    return weights / update if weights and update else 1.0
