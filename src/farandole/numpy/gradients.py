"""Gradients of all ranks, for training loops written with NumPy: ``DistributedGradients``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from farandole.adapters.numpy import unmasked
from farandole.adapters.numpy import verbs as numpy_verbs
from farandole.adapters.numpy_tensors import AnyArray
from farandole.adapters.numpy_tensors import tensors as numpy_tensors
from farandole.collective import ReduceOp
from farandole.gradients.reduced import ReducedGradients, terms_of_gradients
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


@final
class DistributedGradients(ReducedGradients[AnyArray]):
    """Average of the gradients of all ranks, for your own training loop.

    >>> average = hvd.DistributedGradients(weights)         # dict of arrays, the same on every rank
    >>> for x, y in batches:
    ...     gradients = average(gradient_of(weights, x, y))
    ...     for name, weight in weights.items():
    ...         weight -= 0.1 * gradients[name]

    ``like``: a dict by name, or a list, of arrays with the shapes and dtypes of the gradients. ``op``: ``Average``,
    ``Sum``, ``Min``, ``Max`` or ``Product``. ``backward_passes_per_step``: sum the gradients of that many calls before
    reducing, and return ``None`` from the others. ``gradient_predivide_factor``: divide by this factor before the sum,
    and by *size* / factor after it. ``lag``: return the gradients of that many calls ago (at first zeros) while the
    current ones are reduced. ``process_set``: the ranks that share gradients. ``virtual_workers``: the same bits for
    any number of workers, see ``shards``; ``seed`` seeds the shards' random streams. Raises ``ValueError`` for invalid
    arguments.
    """

    tensors, verbs = numpy_tensors, numpy_verbs

    def __init__(
        self,
        like: Mapping[str, AnyArray] | Sequence[AnyArray],
        op: int = ReduceOp.AVERAGE,
        *,
        backward_passes_per_step: int = 1,
        gradient_predivide_factor: float = 1.0,
        lag: int = 0,
        process_set: ProcessSet = global_process_set,
        virtual_workers: int | None = None,
        seed: int = 0,
    ) -> None:
        how = terms_of_gradients(op, gradient_predivide_factor, backward_passes_per_step, lag)
        super().__init__(
            like,
            how,
            backward_passes_per_step=backward_passes_per_step,
            lag=lag,
            process_set=process_set,
            virtual_workers=virtual_workers,
            seed=seed,
        )

    def _shaped(self, like: Any) -> AnyArray:
        array = np.asarray(like)
        return np.broadcast_to(np.zeros((), array.dtype.newbyteorder("=")), array.shape)

    def _given(self, gradient: Any, param: AnyArray) -> AnyArray:
        """See ``ReducedGradients``; casts integers to the dtype of ``param``, or their average would be an integer."""
        array = np.asarray(unmasked(gradient))
        if array.dtype.kind in "biu" and param.dtype.kind not in "biu":
            return array.astype(param.dtype)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
