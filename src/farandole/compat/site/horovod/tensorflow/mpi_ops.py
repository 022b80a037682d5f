"""Collectives and basics of ``farandole.tensorflow`` with the gradients of Horovod 0.28.1.

Gradients of ``allgather`` and ``broadcast`` are averages over the members, and gradients of ``reducescatter`` lack the
division of an average; scripts that compensate for this get the expected gradients. Values are the same, except for an
average of integers in ``tf.IndexedSlices``, which is a float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import farandole.tensorflow as _derivatives
from farandole.gradients.factors import HOROVOD
from farandole.tensorflow.ops import TensorFlowOps

if not TYPE_CHECKING:
    __all__ = _derivatives.__all__

ops = TensorFlowOps(__name__, HOROVOD)
allreduce = ops.allreduce
grouped_allreduce = ops.grouped_allreduce
allgather = ops.allgather
grouped_allgather = ops.grouped_allgather
broadcast = ops.broadcast
reducescatter = ops.reducescatter
grouped_reducescatter = ops.grouped_reducescatter


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_derivatives, name)
    return found
