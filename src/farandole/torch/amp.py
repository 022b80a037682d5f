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
    """``torch.amp.GradScaler``, by one small collective per step the same on every rank.

    >>> scaler = GradScaler("cpu")

    A gradient that is not finite on one rank skips the step on all, and the scale is the same everywhere (Jia et al.
    2018, arXiv 1807.11205, section 4.1). PyTorch's own does that too where every gradient has been reduced, as a sum or
    average carries infinities to all ranks; this one also where gradients are local (``op=Adasum``, ``Min``, ``Max``,
    ``skip_synchronize``), where a rank had no backward pass, and with ``GradientLag``, whose gradients are divided by
    what they had been multiplied with. Arguments are those of PyTorch's, and ``process_set``: the ranks that step
    together. All of them call ``unscale_`` and ``step`` equally often. Raises ``MismatchError`` if their scales differ.
    """

    def __init__(self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agreement = LossScaleAgreement(process_set)
        self._lagging: dict[int, Lagging[torch.Tensor]] = defaultdict(Lagging)
        """Inverse scales, by the ``id`` of an optimizer."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale. Collective: all ranks learn of an infinity or NaN on any of them."""
        self._begin()
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Run ``optimizer.step()``, unless a gradient of some rank is infinite or NaN; arguments are PyTorch's."""
        self._begin()
        lag = getattr(optimizer, "gradient_lag", 0)
        if self._enabled and lag and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
            self.unscale_(optimizer)  # optimizers that unscale by themselves know today's scale only
        return super().step(optimizer, *args, **kwargs)

    def _begin(self) -> None:
        if self._enabled and self._scale is None:  # this rank has had no loss to scale
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
        """The same with what any rank has found."""
        overflow = self._agreement.reach(any(map(float, found.values())), self.get_scale())
        for each in found.values():
            each.fill_(float(overflow))
        return found
