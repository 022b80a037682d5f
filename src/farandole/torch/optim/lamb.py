"""LAMB: Adam with a learning rate per layer."""

from __future__ import annotations

from typing import final

import torch

from farandole.adapters.torch_tensors import norms
from farandole.largebatch.trust import Group, at_least, between, lamb_rate
from farandole.torch.optim.base import LargeBatchOptimizer, Params, State, buffers


class LAMB(LargeBatchOptimizer):
    """Layer-wise adaptive moments (You et al. 2020, arXiv 1904.00962, algorithm 2, with φ(z) = z).

    >>> optimizer = LAMB(model.parameters(), lr=2e-3, weight_decay=1e-2)

    u = m̂ / (√v̂ + ε) + βw, w ← w − γ·(‖w‖ / ‖u‖)·u for every layer; the ratio is 1 if a norm is 0. m̂ and v̂ are
    Adam's averages of g and g², corrected for their start at zero; γ is ``lr``, β ``weight_decay``. Nothing is clipped:
    neither the ratio (clipped at 10 in the first version of the paper) nor the gradient.

    For ``exempt`` parameters, half precision and errors see ``LARS``; for exempt parameters this is Adam.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        between("betas[0]", betas[0])
        between("betas[1]", betas[1])
        at_least("eps", eps)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @final
    def _update(
        self, group: Group, weights: list[torch.Tensor], grads: list[torch.Tensor], states: list[State]
    ) -> None:
        lr, (beta1, beta2), eps = float(group["lr"]), group["betas"], group["eps"]
        means, squares = buffers(states, "exp_avg", weights), buffers(states, "exp_avg_sq", weights)
        torch._foreach_lerp_(means, grads, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1.0 - beta2)
        updates = torch._foreach_sqrt(squares)
        for state in states:
            state["step"] = state.get("step", 0) + 1
        torch._foreach_div_(updates, [(1.0 - beta2 ** s["step"]) ** 0.5 for s in states])
        torch._foreach_add_(updates, eps)
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_div_(updates, [1.0 - beta1 ** s["step"] for s in states])
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        rates = [lr] * len(weights)
        if not group["exempt"]:
            rates = [lr * lamb_rate(w, u) for w, u in zip(norms(weights), norms(updates), strict=True)]
        torch._foreach_mul_(updates, rates)
        torch._foreach_sub_(weights, updates)
