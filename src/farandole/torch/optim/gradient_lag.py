"""Steps with the gradients of an earlier batch, to hide their communication."""

from __future__ import annotations

import torch

from farandole.errors import UsageError
from farandole.torch.reducing_optimizer import ReducingOptimizer


def GradientLag(optimizer: torch.optim.Optimizer, lag: int = 1) -> ReducingOptimizer:  # noqa: N802 (used like a class)
    """Let ``optimizer`` step with the gradients of ``lag`` steps ago, and reduce during the steps in between.

    >>> optimizer = hvd.DistributedOptimizer(LARC(optimizer), named_parameters=model.named_parameters())
    >>> optimizer = GradientLag(optimizer, lag=1)

    w(t+1) = w(t) − γ·mean g(w(t−lag)): Kurth et al. 2018, arXiv 1810.01993, section V-B4. When ``backward()`` returns,
    ``p.grad`` is the mean gradient of ``lag`` steps ago, zero in the first ``lag`` steps, so that clipping, LARC and
    LARS see the gradient that the step uses. The gradient of this batch is reduced in the background, until the end of
    the backward pass ``lag`` steps later: communication up to that duration is hidden.

    Costs the memory of ``lag`` gradients. With loss scaling use ``farandole.torch.amp.GradScaler``, which remembers the
    scales of earlier gradients. Pending gradients are not part of checkpoints: after ``load_state_dict``, ``join`` or
    a change of the workers the lag begins with zeros again. Returns ``optimizer``, which must be a
    ``DistributedOptimizer`` (not with Adasum, which reduces no gradients). Raises ``ValueError`` for invalid arguments.
    """
    if not isinstance(optimizer, ReducingOptimizer):
        raise UsageError(
            "GradientLag delays what DistributedOptimizer reduces: GradientLag(hvd.DistributedOptimizer(optimizer))"
        )
    if lag < 0:
        raise UsageError(f"lag={lag}: expected a number of steps from 0")
    optimizer.set_gradient_lag(lag)
    return optimizer
