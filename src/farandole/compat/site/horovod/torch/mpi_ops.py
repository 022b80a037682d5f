"""Everything that is not the optimizer, as in ``farandole.torch.mpi_ops``, with the gradients of Horovod 0.28.1.

Gradients of ``allgather`` and ``broadcast`` are averages over the members, and those of ``reducescatter`` lack the
division that makes an average; scripts that make up for it get what they expect. Values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.collective import ReduceOp
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch import mpi_ops as _derivatives
from farandole.torch.autograd import HOROVOD
from farandole.torch.compression import Compression, CompressorLike
from farandole.torch.exchanges import copied, gathered
from farandole.torch.reductions import scattered

__all__ = _derivatives.__all__


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_derivatives, name)
    return found


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """``farandole.torch.allgather``; the gradient is divided by the number of members."""
    [result] = gathered([tensor], name, process_set, HOROVOD)
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """``farandole.torch.grouped_allgather``; gradients are divided by the number of members."""
    return gathered(tensors, name, process_set, HOROVOD)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """``farandole.torch.broadcast``; the gradient is divided by the number of members."""
    return copied(tensor, root_rank, name, process_set, HOROVOD)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """``farandole.torch.reducescatter``; the gradient is multiplied by the number of members."""
    how = reduction(None, op, prescale_factor, postscale_factor)
    [result] = scattered([tensor], name, compression, how, process_set, HOROVOD)
    return result


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``farandole.torch.grouped_reducescatter``; gradients are multiplied by the number of members."""
    how = reduction(None, op, prescale_factor, postscale_factor)
    return scattered(tensors, name, compression, how, process_set, HOROVOD)
