"""Squared norms of gradients, as they are and as Adam sees them.

squared_norm([param.grad for param in params])
squared_norm(preconditioned(optimizer, params))     # once the optimizer has a second moment
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

SECOND_MOMENT = "exp_avg_sq"


def gradients(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of ``params`` that are there; of sparse ones their values."""
    found = (param.grad for param in params)
    return [g.coalesce().values() if g.is_sparse else g for g in found if g is not None]


def squared_norm(tensors: Iterable[torch.Tensor]) -> float:
    """The sum of the squares of all elements: in float32 for 16-bit tensors, over tensors in float64."""
    alike: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    total = 0.0
    for (dtype, _), members in alike.items():
        if dtype.itemsize == 2:
            norms = [torch.linalg.vector_norm(member, dtype=torch.float32) for member in members]
        else:
            norms = list(torch._foreach_norm(members))
        total += sum(norm * norm for norm in torch.stack(norms).tolist())  # a single copy from the device
    return total


def preconditioned(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients divided by sqrt(v) + eps, with v as the optimizer's last step left it, its bias corrected.

    Empty where that is not known: before the first step, or if the optimizer has no second moment.
    """
    groups = {id(param): group for group in optimizer.param_groups for param in group["params"]}
    found: list[torch.Tensor] = []
    for param in params:
        state, group = optimizer.state.get(param, {}), groups[id(param)]
        if param.grad is None or param.grad.is_sparse or SECOND_MOMENT not in state:
            continue
        correction = 1.0 - group["betas"][1] ** float(state["step"])
        scale = (state[SECOND_MOMENT] / correction).sqrt_().add_(group["eps"])
        found.append(param.grad / scale)
    return found
