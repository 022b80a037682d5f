"""``NoiseScaleCallback``: the gradient noise scale of a ``fit``, from values that the reduction computes anyway.

noise = hvd.callbacks.NoiseScaleCallback(batch_size=32)
model.fit(x, y, batch_size=32, callbacks=[noise])
print(noise.estimate())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import keras

from farandole.errors import UsageError
from farandole.gradients.noise import GradientNoise
from farandole.graphs.gradients import GraphGradients, squared_norm
from farandole.keras.backends import backend
from farandole.keras.distribution import Distribution
from farandole.keras.optimizer_tree import leaves
from farandole.largebatch.noise import Estimated, NoEstimate


@final
class KerasNoise(GradientNoise):
    """Estimator of S, |G|^2 and B_simple for one reduction of a distributed optimizer."""

    lone_needs = "another rank"

    def __init__(
        self, gradients: GraphGradients, every: int | None, horizon_samples: float | None, dataset_size: int | None
    ) -> None:
        self._gradients = gradients
        super().__init__(gradients.reducer, every, horizon_samples, dataset_size, summed_passes=False)

    def _norms2(self, params: Sequence[Any]) -> tuple[float, float]:
        """See ``GradientNoise``."""
        return squared_norm(self._gradients, params), 0.0


class NoiseScaleCallback(keras.callbacks.Callback):
    """Estimate of the gradient noise scale of a ``fit`` with a ``DistributedOptimizer``, the same on all ranks.

    >>> noise = hvd.callbacks.NoiseScaleCallback(batch_size=32)
    >>> model.fit(x, y, batch_size=32, callbacks=[noise])
    >>> noise.estimate().b_simple

    ``batch_size``: samples in a batch of this rank, or a function from the batch's index to this number, for example
    ``lambda batch: len(batches.rows(batch))``; the loss is their mean. ``every``: measure every that many batches; by
    default as often as costs less than 1 % of a step. ``horizon_samples`` and ``dataset_size``: see
    ``farandole.largebatch.NoiseEstimator``. The logs of an epoch have the current estimate as ``noise_scale``.
    ``noise`` is the estimator, with ``advise``, ``gain`` and ``state_dict``, after the first batch was reduced. There
    is no estimate for Adam; local gradients (``local_layers``) and rows of embeddings on TensorFlow are left out.
    Raises ``UsageError`` for an optimizer that is not distributed, scales losses or accumulates, and for
    ``steps_per_execution``.
    """

    def __init__(
        self,
        batch_size: int | Callable[[int], int],
        every: int | None = None,
        horizon_samples: float | None = None,
        dataset_size: int | None = None,
    ) -> None:
        super().__init__()
        self._rows: Callable[[int], int] = batch_size if callable(batch_size) else lambda _: int(batch_size)
        self._asked = every, horizon_samples, dataset_size
        self._watched: Distribution | None = None
        self._seen = 0
        self.noise: KerasNoise | None = None
        """The estimator; ``None`` before the first batch."""

    def estimate(self) -> Estimated:
        """Estimate S, |G|^2 and B_simple. If they are unknown, return a ``NoEstimate`` with the reason."""
        return NoEstimate("no batch was reduced yet") if self.noise is None else self.noise.estimate()

    def on_train_begin(self, logs: Any = None) -> None:
        """See ``Callback``."""
        optimizer = self.model.optimizer
        distribution = getattr(optimizer, "_farandole", None)
        if distribution is None:
            raise UsageError(
                f"NoiseScaleCallback with {type(optimizer).__name__}: it reads what ranks reduce; compile the model "
                "with hvd.DistributedOptimizer(...)"
            )
        if hasattr(optimizer, "inner_optimizer"):
            raise UsageError("NoiseScaleCallback with scaled losses: norms would be those of the scale; use bfloat16")
        if (passes := max(leaf.gradient_accumulation_steps or 1 for leaf in leaves(optimizer))) > 1:
            raise UsageError(
                f"NoiseScaleCallback with an optimizer that accumulates {passes} "
                "batches: each is reduced by itself and would be taken for a step, so its advice would be about a "
                "batch that is too small; measure with an optimizer that steps with each batch"
            )
        if self.model.steps_per_execution != 1:
            raise UsageError(
                f"NoiseScaleCallback with steps_per_execution={self.model.steps_per_execution}: leave it at 1"
            )
        if distribution is not self._watched:
            self._watched = distribution
            distribution.watch(self._observe)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``."""
        self._seen = self._rows(batch)
        if self.noise is not None:
            self.noise.saw(self._seen)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``; waits for the step (on JAX it may still run) before the next batch is reported."""
        backend.await_step(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See ``Callback``."""
        found = self.estimate()
        if logs is not None and found:
            logs["noise_scale"] = found.b_simple  # type: ignore[union-attr] # an estimate is true

    def _observe(self, gradients: GraphGradients) -> None:
        """Estimate from this reduction from now on, and take over the state of the previous estimator."""
        before, self.noise = self.noise, KerasNoise(gradients, *self._asked)
        if before is not None:
            self.noise.load_state_dict(before.state_dict())
        if self._seen:
            self.noise.saw(self._seen)
