"""RMSprop that gradually becomes SGD.

Share of SGD in an update during the transition from RMSprop: Akiba, Suzuki, Fukuda 2017, arXiv 1711.04325.

>>> [round(sgd_share(epoch, center=10.0, period=5.0), 3) for epoch in (0, 5, 10, 12.5, 90)]
[0.009, 0.068, 0.5, 1.0, 1.0]
"""

from __future__ import annotations

import math
from typing import final

import torch

from farandole.largebatch.trust import Group, at_least, between
from farandole.torch.optim.base import LargeBatchOptimizer, Params, State, buffers


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


class RMSpropWarmupSGD(LargeBatchOptimizer):
    """RMSprop that becomes SGD with momentum (Akiba, Suzuki, Fukuda 2017, arXiv 1711.04325, section 2.1).

    >>> optimizer = RMSpropWarmupSGD(model.parameters(), lr=12.8, steps_per_epoch=len(batches))

    m ← μ₂m + (1−μ₂)g², Δ ← μ₁Δ − (α_SGD + α_RMSprop/(√m+ε))·g, w ← w + γΔ. α_SGD grows with the epoch, see
    ``farandole.torch.optim.rmsprop_warmup``; α_RMSprop = (1−α_SGD)·η/γ. γ is ``lr``, η ``rmsprop_lr``, μ₁ ``momentum``,
    μ₂ ``alpha``; weight decay, which is not in the equations, is added to the gradient.

    Each group counts its ``epoch``, by 1 / ``steps_per_epoch`` at every step; if the number of workers changes, set
    ``steps_per_epoch`` in ``param_groups`` again. The paper uses no moving averages in batch normalization: all-reduce
    the statistics of the last mini-batch before validation. For ``exempt`` parameters (here: no decay), half precision
    and errors see ``LARS``.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        steps_per_epoch: float,
        momentum: float = 0.9,
        alpha: float = 0.99,
        eps: float = 1e-8,
        rmsprop_lr: float = 3e-4,
        center: float = 10.0,
        period: float = 5.0,
        weight_decay: float = 0.0,
    ) -> None:
        between("momentum", momentum)
        between("alpha", alpha)
        at_least("eps", eps)
        at_least("rmsprop_lr", rmsprop_lr)
        at_least("steps_per_epoch", steps_per_epoch, 1.0)
        at_least("center", center)
        at_least("period", period, 1e-9)
        defaults = {
            "lr": lr,
            "steps_per_epoch": steps_per_epoch,
            "epoch": 0.0,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "rmsprop_lr": rmsprop_lr,
            "center": center,
            "period": period,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    @final
    def _update(
        self, group: Group, weights: list[torch.Tensor], grads: list[torch.Tensor], states: list[State]
    ) -> None:
        lr, alpha = float(group["lr"]), group["alpha"]
        share = sgd_share(group["epoch"], group["center"], group["period"])
        if group["weight_decay"]:
            grads = list(torch._foreach_add(grads, weights, alpha=group["weight_decay"]))
        squares, changes = buffers(states, "square_avg", weights), buffers(states, "momentum_buffer", weights)
        torch._foreach_mul_(squares, alpha)
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - alpha)
        factors = torch._foreach_sqrt(squares)
        torch._foreach_add_(factors, group["eps"])
        torch._foreach_reciprocal_(factors)
        torch._foreach_mul_(factors, rmsprop_share(share, group["rmsprop_lr"], lr))
        torch._foreach_add_(factors, share)
        torch._foreach_mul_(changes, group["momentum"])
        torch._foreach_addcmul_(changes, factors, grads, value=-1.0)
        torch._foreach_add_(weights, changes, alpha=lr)

    @final
    def _advance(self, group: Group) -> None:
        group["epoch"] += 1.0 / group["steps_per_epoch"]
