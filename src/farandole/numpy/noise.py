"""``NoiseScale``: the gradient noise scale of the user's own training loop.

average = hvd.DistributedGradients(weights)
noise = hvd.NoiseScale(average)
for x, y in batches:
    noise.saw(len(x))
    gradients = average(gradient_of(weights, x, y))
    ...
print(noise.estimate())
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import final

import numpy as np

from farandole.adapters.numpy_tensors import AnyArray
from farandole.errors import UnsupportedError
from farandole.gradients.list_reducer import ListReducer
from farandole.gradients.noise import GradientNoise
from farandole.gradients.tensors import Param
from farandole.numpy.gradients import DistributedGradients


@final
class NumpyNoiseScale(GradientNoise):
    """Estimator of S, |G|^2 and B_simple for the gradients that ``average``, a ``DistributedGradients``, reduces.

    >>> noise = hvd.NoiseScale(average)
    >>> noise.saw(len(x))                           # before every call of ``average``
    >>> noise.estimate().b_simple

    ``every``: measure every that many steps; by default as often as costs less than 1 % of a step. ``horizon_samples``
    and ``dataset_size``: see ``farandole.largebatch.NoiseEstimator``. ``summed_passes``: the gradients of an
    accumulation (``backward_passes_per_step``) are not divided by the number of its passes. ``adam_estimate()`` gives
    no estimate, because the optimizer is unknown here. Raises ``UsageError`` for gradients that are neither averaged
    nor summed, ``UnsupportedError`` for virtual workers.
    """

    def __init__(
        self,
        average: DistributedGradients,
        every: int | None = None,
        horizon_samples: float | None = None,
        dataset_size: int | None = None,
        summed_passes: bool = False,
    ) -> None:
        reducer = average.reducer
        if not isinstance(reducer, ListReducer):
            raise UnsupportedError(
                "NoiseScale with virtual_workers=...: it reads the gradients of real ones; leave one out"
            )
        self._handed: weakref.ref[ListReducer[AnyArray]] = weakref.ref(reducer)
        super().__init__(reducer, every, horizon_samples, dataset_size, summed_passes)

    def _norms2(self, params: Sequence[Param]) -> tuple[float, float]:
        """See ``GradientNoise``."""
        reducer = self._handed()
        return (0.0 if reducer is None else math.fsum(map(_squared_norm, reducer.gradients(params)))), 0.0


def _squared_norm(array: AnyArray) -> float:
    """Sum of the squares of all elements, in float64."""
    flat = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).reshape(-1)
    return float(np.vdot(flat, flat).real)
