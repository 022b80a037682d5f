"""Dynamic loss scales that all ranks agree on.

scaler = farandole.torch.amp.GradScaler()
scaler.scale(loss).backward()
scaler.unscale_(optimizer)              # where gradients are clipped
scaler.step(optimizer)                  # on all ranks, or on none
scaler.update()
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, final

import torch
from torch.amp.grad_scaler import OptState

from farandole.gradients.loss_scale import Lagging, LossScaleAgreement
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.reducing_optimizer import ReducingOptimizer

__all__ = ["GradScaler"]


@final
class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` that agrees on every rank, by one small collective per step.

    >>> scaler = GradScaler("cpu")

    A gradient that is not finite on one rank skips the step on all ranks, and all ranks have the same scale (Jia et al.
    2018, arXiv 1807.11205, section 4.1). PyTorch's scaler does this only if every gradient was reduced, because a sum
    or average carries infinities to all ranks. This scaler also covers local gradients (``op=Adasum``, ``Min``,
    ``Max``, ``skip_synchronize``), ranks without a backward pass, and ``GradientLag``, whose gradients it divides by
    the scale of their own step. Arguments: PyTorch's, and ``process_set``, the ranks that step together. All of them
    must call ``unscale_`` and ``step`` equally often. Raises ``MismatchError`` if their scales differ.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agreement = LossScaleAgreement(process_set)
        self._lagging: dict[int, Lagging[torch.Tensor]] = defaultdict(Lagging)
        """Inverse scales by ``id`` of the optimizer."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale. Collective: all ranks get the overflow of any rank."""
        self._begin()
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Run ``optimizer.step()``, unless a gradient of some rank is infinite or NaN; arguments are PyTorch's."""
        self._begin()
        lag = getattr(optimizer, "gradient_lag", 0)
        if self._enabled and lag and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)  # an optimizer that unscales by itself would use the current scale
        return super().step(optimizer, *args, **kwargs)

    def _begin(self) -> None:
        if self._enabled and self._scale is None:  # this rank has scaled no loss yet
            self._lazy_init_scale_growth_tracker(torch.device(self._device))

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        if isinstance(optimizer, ReducingOptimizer):
            optimizer.prepare()
            inv_scale = self._lagging[id(optimizer)].due(inv_scale, optimizer.gradient_lag)
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return self._agreed(found or {found_inf.device: found_inf})

    def _agreed(self, found: dict[torch.device, torch.Tensor]) -> dict[torch.device, torch.Tensor]:
        """Replace the overflow flags by the flags of all ranks together."""
        overflow = self._agreement.reach(any(map(float, found.values())), self.get_scale())
        for each in found.values():
            each.fill_(float(overflow))
        return found
