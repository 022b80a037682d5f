"""``NoiseScale``: the gradient noise scale of a training, from values that the training computes anyway.

noise = NoiseScale(optimizer, params)           # a DistributedOptimizer
for x, y in batches:
    noise.saw(len(x))
    params, state = jax.block_until_ready(step(params, state, x, y))
print(noise.estimate())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from farandole.errors import UsageError
from farandole.gradients.noise import GradientNoise
from farandole.graphs.gradients import squared_norm
from farandole.jax.optimizer import Update


@final
class JaxNoiseScale(GradientNoise):
    """Estimator of S, |G|^2 and B_simple for the gradients of ``optimizer``, a ``DistributedOptimizer``.

    >>> noise = NoiseScale(optimizer, params)
    >>> noise.saw(len(x))                           # before every step is dispatched, when the one before is done
    >>> noise.estimate().b_simple

    ``params``: a pytree with the shapes of the gradients. ``every``: measure every that many steps; by default as often
    as costs less than 1 % of a step. ``horizon_samples`` and ``dataset_size``: see
    ``farandole.largebatch.NoiseEstimator``. There is no estimate for Adam. Raises ``UsageError`` for an optimizer that
    is not distributed, neither averages nor sums, or accumulates several passes.
    """

    def __init__(
        self,
        optimizer: Any,
        params: Any,
        every: int | None = None,
        horizon_samples: float | None = None,
        dataset_size: int | None = None,
    ) -> None:
        update = getattr(optimizer, "update", None)
        if not isinstance(update, Update):
            raise UsageError(
                "NoiseScale reads what a DistributedOptimizer reduces: wrap the optimizer first, and chain inside"
            )
        if update.passes > 1:
            raise UsageError("NoiseScale with backward_passes_per_step: it would see sums; use a larger batch instead")
        self._gradients = update.gradients.reducing(params)
        super().__init__(self._gradients.reducer, every, horizon_samples, dataset_size, summed_passes=False)

    def _norms2(self, params: Sequence[Any]) -> tuple[float, float]:
        """See ``GradientNoise``."""
        return squared_norm(self._gradients, params), 0.0


NoiseScale = JaxNoiseScale
