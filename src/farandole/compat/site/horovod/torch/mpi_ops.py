"""Collectives and process functions of ``farandole.torch.mpi_ops`` with the gradients of Horovod 0.28.1.

Gradients of ``allgather`` and ``broadcast`` are averages over the members, and gradients of ``reducescatter`` lack the
division of an average; scripts that compensate for this get the expected gradients. Values are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farandole.gradients.factors import HOROVOD
from farandole.torch import mpi_ops as _derivatives
from farandole.torch.ops import TorchOps

if not TYPE_CHECKING:
    __all__ = _derivatives.__all__

ops = TorchOps(__name__, HOROVOD)
allgather = ops.allgather
grouped_allgather = ops.grouped_allgather
broadcast = ops.broadcast
reducescatter = ops.reducescatter
grouped_reducescatter = ops.grouped_reducescatter


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_derivatives, name)
    return found
