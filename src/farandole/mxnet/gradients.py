"""Gradients of all ranks, for training loops written with MXNet: ``DistributedGradients``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

import mxnet as mx
import numpy as np

from farandole.adapters.mxnet import BFLOAT16, NDArray, adapter, new_array, values
from farandole.adapters.numpy import verbs as numpy_verbs
from farandole.adapters.numpy_tensors import AnyArray
from farandole.adapters.numpy_tensors import tensors as numpy_tensors
from farandole.collective import ReduceOp, Reduction
from farandole.gradients.reduced import GivenGradients, ReducedGradients, terms_of_gradients
from farandole.mxnet.compression import cast
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


class NDArrayGradients(ReducedGradients[AnyArray]):
    """Reduction of MXNet arrays through NumPy views, without operators on MXNet's engine.

    bfloat16, which NumPy lacks, is reduced as float32.
    """

    tensors, verbs = numpy_tensors, numpy_verbs

    def __init__(self, like: Mapping[str, NDArray] | Sequence[NDArray], how: Reduction, **options: Any) -> None:
        arrays = like.values() if isinstance(like, Mapping) else like
        self._made = [partial(_array, each.dtype == BFLOAT16, isinstance(each, mx.np.ndarray)) for each in arrays]
        super().__init__(like, how, **options)

    def __call__(self, gradients: GivenGradients, weights: GivenGradients | None = None) -> Any:
        """See ``ReducedGradients``; returns new MXNet arrays."""
        reduced = super().__call__(gradients, weights)
        if reduced is None:
            return None
        arrays = reduced.values() if isinstance(reduced, dict) else reduced
        made = [None if each is None else make(each) for make, each in zip(self._made, arrays, strict=True)]
        return dict(zip(reduced, made, strict=True)) if isinstance(reduced, dict) else made

    def _shaped(self, like: NDArray) -> AnyArray:
        dtype = np.float32 if like.dtype == BFLOAT16 else like.dtype
        return np.broadcast_to(np.zeros((), dtype), like.shape)

    def _given(self, gradient: NDArray, param: AnyArray) -> AnyArray:
        dense = adapter.dense(gradient)
        found: AnyArray = values(cast(dense, np.float32) if dense.dtype == BFLOAT16 else dense)
        return found


@final
class NDArrayDistributedGradients(NDArrayGradients):
    """Average of the gradients of all ranks, for your own training loop.

    >>> average = hvd.DistributedGradients({"w": w, "b": b})        # arrays, alike on every rank
    >>> for x, y in batches:
    ...     with mx.autograd.record():
    ...         loss = loss_of(x, y, w, b)
    ...     loss.backward()
    ...     gradients = average({"w": w.grad, "b": b.grad})         # new arrays
    ...     w -= 0.1 * gradients["w"]

    For the arguments see ``farandole.numpy.DistributedGradients``. Raises ``ValueError`` for invalid arguments.
    """

    def __init__(
        self,
        like: Mapping[str, NDArray] | Sequence[NDArray],
        op: int = ReduceOp.AVERAGE,
        *,
        backward_passes_per_step: int = 1,
        gradient_predivide_factor: float = 1.0,
        lag: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        how = terms_of_gradients(op, gradient_predivide_factor, backward_passes_per_step, lag)
        super().__init__(like, how, backward_passes_per_step=backward_passes_per_step, lag=lag, process_set=process_set)


def _array(is_narrow: bool, is_np: bool, reduced: AnyArray) -> NDArray:
    """New MXNet array with the values of a NumPy array."""
    made = new_array(reduced.shape, reduced.dtype, is_np)
    values(made)[...] = reduced
    return cast(made, BFLOAT16) if is_narrow else made
