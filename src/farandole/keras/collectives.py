"""The four collectives of ``horovod.keras``, with its order of arguments, on tensors of the backend in use.

>>> total = hvd.allreduce(loss, "loss", op=hvd.Sum)
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from farandole.collective import ReduceOp
from farandole.graphs.keras_variables import is_of_keras
from farandole.keras.backends import collectives as _collectives
from farandole.keras.compression import CompressorLike, NoneCompressor
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "allreduce", "broadcast", "reducescatter"]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: CompressorLike = NoneCompressor,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``value``, a tensor or an object that converts to one, over all ranks; returns a new tensor.

    >>> mean = hvd.allreduce(loss, "loss")

    ``op``: Average (default), Sum, Min, Max, Product or Adasum; ``average`` is its older form. The average of booleans
    is *and*.
    """
    tensor, context = compression.compress(_tensor(value))
    reduced = _collectives().allreduce(
        tensor,
        name=name,
        average=average,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )
    return compression.decompress(reduced, context)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the tensors of all ranks along dimension 0, in which their lengths may differ.

    >>> everything = hvd.allgather(predictions, "predictions")
    """
    return _collectives().allgather(_tensor(value), name=name, process_set=process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the ``value`` of the rank ``root_rank`` (a global rank, for every process set).

    >>> first = hvd.broadcast(weights, 0)
    """
    return _collectives().broadcast(_tensor(value), root_rank, name=name, process_set=process_set)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce like ``allreduce``, and return this rank's share of dimension 0.

    >>> share = hvd.reducescatter(ones, "ones", hvd.Sum)    # 5 rows on 2 ranks: 3 go to rank 0, 2 to rank 1
    """
    return _collectives().reducescatter(
        _tensor(value),
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def _tensor(value: Any) -> Any:
    """Convert plain values and Keras variables to tensors of the backend; return other objects unchanged."""
    if is_of_keras(value):
        return value.value
    is_plain = isinstance(value, list | tuple | bool | int | float | np.ndarray | np.generic)
    return keras.ops.convert_to_tensor(value) if is_plain else value
