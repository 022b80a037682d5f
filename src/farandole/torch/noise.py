"""``NoiseScale``: the gradient noise scale of a training, from what it computes anyway.

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
from collections.abc import Sequence
from typing import Protocol, final

import torch

from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.noise import GradientNoise
from farandole.torch.norms import gradients, preconditioned, squared_norm
from farandole.torch.optimizer import ReducingOptimizer
from farandole.torch.reducer import TorchReducer


class _Scaler(Protocol):
    def get_scale(self) -> float: ...


@final
class NoiseScale(GradientNoise):
    """Estimates S, |G|^2 and B_simple of what ``optimizer``, a ``DistributedOptimizer``, trains.

    >>> noise = hvd.NoiseScale(optimizer)
    >>> noise.saw(len(x))                           # before every backward pass
    >>> noise.estimate().b_simple

    ``every``: measure every so many steps; by default as often as costs less than 1 % of a step. ``horizon_samples``
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
            adam = preconditioned(optimizer, params) if optimizer is not None else []
            return squared_norm(gradients(params)) / scale**2, squared_norm(adam) / scale**2
