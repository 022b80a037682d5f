"""LARS: SGD with momentum and a learning rate per layer."""

from __future__ import annotations

from typing import final

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from farandole.adapters.torch_tensors import norms
from farandole.largebatch.trust import Group, at_least, between, lars_rate
from farandole.torch.optim.base import LargeBatchOptimizer, Params, State, buffers

FUSED_DEVICES = tuple(_get_fused_kernels_supported_devices()) if hasattr(torch, "_fused_sgd_") else ()


class LARS(LargeBatchOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017, arXiv 1708.03888, algorithm 1).

    >>> optimizer = LARS(model.parameters(), lr=3.2, momentum=0.9, weight_decay=1e-4)

    v ← m·v + γ·λ·(g + βw), w ← w − v, with λ = η‖w‖ / (‖g‖ + β‖w‖) for every layer, 1 if a norm is 0. γ is ``lr``, m
    ``momentum``, β ``weight_decay``, η ``trust_coefficient``. The velocity includes the rate: a change of the rate
    affects only later gradients, unless the schedule corrects the velocity, like ``SamplesLR``. Norms are per tensor,
    in at least float32.

    Parameters with fewer than two dimensions are ``exempt``: λ = 1, β = 0, in a separate group. A group with the key
    ``"exempt"`` is not split. Weights in half precision have float32 masters. Raises ``ValueError`` for invalid
    settings, ``UnsupportedError`` for sparse gradients.
    """

    momentum_holds_rate = True

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
    ) -> None:
        between("momentum", momentum)
        at_least("trust_coefficient", trust_coefficient)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(params, defaults)

    @final
    def _update(
        self, group: Group, weights: list[torch.Tensor], grads: list[torch.Tensor], states: list[State]
    ) -> None:
        lr, decay, coefficient = float(group["lr"]), group["weight_decay"], group["trust_coefficient"]
        rates = [lr] * len(weights)
        if not group["exempt"]:
            lengths = zip(norms(weights), norms(grads), strict=True)
            rates = [lr * lars_rate(w, g, coefficient, decay) for w, g in lengths]
        velocities = buffers(states, "momentum_buffer", weights)
        for weight, grad, velocity, rate in zip(weights, grads, velocities, rates, strict=True):
            _descend(weight, grad, velocity, group["momentum"], rate, decay)


def _descend(w: torch.Tensor, g: torch.Tensor, v: torch.Tensor, momentum: float, rate: float, decay: float) -> None:
    """One step: v ← momentum·v + rate·(g + decay·w), w ← w − v.

    PyTorch's fused SGD does this in one pass over memory: a dampening of 1 − rate multiplies the new term by the rate.
    It treats tensors as flat memory, so all must have the same memory layout.
    """
    fused = momentum > 0.0 and w.device.type in FUSED_DEVICES
    alike = w.stride() == g.stride() == v.stride() and w.dtype == g.dtype and w.is_floating_point()
    if fused and alike and torch.ops.aten.is_non_overlapping_and_dense(w):
        torch._fused_sgd_(
            [w],
            [g],
            [v],
            weight_decay=decay,
            momentum=momentum,
            lr=1.0,
            dampening=1.0 - rate,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
    else:
        v.mul_(momentum).add_(g, alpha=rate).add_(w, alpha=rate * decay)
        w.sub_(v)
