"""Collectives and process functions, under the module name that Horovod's scripts and tests import.

from farandole.torch.mpi_ops import allreduce, poll, synchronize
"""

# ruff: noqa: PLC0414 (names imported as themselves are exported)
from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.gradients.join import join as join
from farandole.runtime.collectives.basics import *  # noqa: F403
from farandole.runtime.collectives.ops import PUBLIC
from farandole.torch import autograd as _autograd
from farandole.torch.compression import Compression as Compression
from farandole.torch.ops import TorchOps
from farandole.torch.parameters import sparse_allreduce_async as sparse_allreduce_async

HorovodAllreduce = HorovodGroupedAllreduce = _autograd.Allreduce  # takes any number of tensors
HorovodAllgather = HorovodGroupedAllgather = _autograd.Allgather
HorovodBroadcast = _autograd.Broadcast
HorovodAlltoall = _autograd.Alltoall
HorovodReducescatter = HorovodGroupedReducescatter = _autograd.Reducescatter

ops = TorchOps(__name__)
allreduce = ops.allreduce
allreduce_ = ops.allreduce_
allreduce_async = ops.allreduce_async
allreduce_async_ = ops.allreduce_async_
grouped_allreduce = ops.grouped_allreduce
grouped_allreduce_ = ops.grouped_allreduce_
grouped_allreduce_async = ops.grouped_allreduce_async
grouped_allreduce_async_ = ops.grouped_allreduce_async_
reducescatter = ops.reducescatter
reducescatter_async = ops.reducescatter_async
grouped_reducescatter = ops.grouped_reducescatter
grouped_reducescatter_async = ops.grouped_reducescatter_async
allgather = ops.allgather
allgather_async = ops.allgather_async
grouped_allgather = ops.grouped_allgather
grouped_allgather_async = ops.grouped_allgather_async
broadcast = ops.broadcast
broadcast_ = ops.broadcast_
broadcast_async = ops.broadcast_async
broadcast_async_ = ops.broadcast_async_
alltoall = ops.alltoall
alltoall_async = ops.alltoall_async
broadcast_parameters = ops.broadcast_parameters

if not TYPE_CHECKING:  # type checkers and editors use the names defined and imported above
    _horovods = tuple(name for name in globals() if name.startswith("Horovod"))
    __all__ = [*PUBLIC, "sparse_allreduce_async", *_horovods]  # noqa: PLE0604
