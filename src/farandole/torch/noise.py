"""``NoiseScale``: the gradient noise scale of a training, from values that the training computes anyway.

noise = hvd.NoiseScale(optimizer)               # a DistributedOptimizer
for x, y in loader:
    optimizer.zero_grad()
    noise.saw(len(x))
    loss_of(model(x), y).backward()
    optimizer.step()
print(noise.estimate())
print(noise.advise(samples=90 * len(dataset), max_workers=8))
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol, final

import torch

from farandole.adapters.torch_tensors import gradients, squared_norm
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.noise import GradientNoise
from farandole.torch.reducer import TorchReducer
from farandole.torch.reducing_optimizer import ReducingOptimizer

SECOND_MOMENT = "exp_avg_sq"


class _Scaler(Protocol):
    def get_scale(self) -> float: ...


@final
class NoiseScale(GradientNoise):
    """Estimator of S, |G|^2 and B_simple for the gradients of ``optimizer``, a ``DistributedOptimizer``.

    >>> noise = hvd.NoiseScale(optimizer)
    >>> noise.saw(len(x))                           # before every backward pass
    >>> noise.estimate().b_simple

    ``every``: measure every that many steps; by default as often as costs less than 1 % of a step. ``horizon_samples``
    and ``dataset_size``: see ``farandole.largebatch.NoiseEstimator``. ``scaler``: the ``GradScaler`` of the loss, if
    there is one. ``summed_passes``: the losses of an accumulation are not divided by the number of its passes. Raises
    ``UsageError`` for an optimizer that is not distributed, or neither averages nor sums.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        every: int | None = None,
        horizon_samples: float | None = None,
        dataset_size: int | None = None,
        scaler: _Scaler | None = None,
        summed_passes: bool = False,
    ) -> None:
        if not isinstance(optimizer, ReducingOptimizer):
            raise UsageError("NoiseScale reads what a DistributedOptimizer reduces: wrap the optimizer first")
        reducer = optimizer._reducer
        if not isinstance(reducer, TorchReducer):
            raise UnsupportedError(
                "NoiseScale with virtual_workers=...: it reads the gradients of real ones; leave one out"
            )
        self._optimizer, self._scaler = weakref.ref(optimizer), scaler
        super().__init__(reducer, every, horizon_samples, dataset_size, summed_passes)

    def _norms2(self, params: Sequence[torch.Tensor]) -> tuple[float, float]:
        """See ``GradientNoise``."""
        optimizer = self._optimizer()
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        with torch.no_grad():
            adam = _preconditioned(optimizer, params) if optimizer is not None else []
            return squared_norm(gradients(params)) / scale**2, squared_norm(adam) / scale**2


def _preconditioned(optimizer: torch.optim.Optimizer, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients divided by sqrt(v) + eps, with the bias-corrected v of the optimizer's last step.

    Empty if v is unknown: before the first step, or for an optimizer without a second moment.
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
