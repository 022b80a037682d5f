"""Farandole for MXNet 1.9: training with Gluon or the Module API on several workers.

    import mxnet as mx
    import farandole.mxnet as hvd

    hvd.init()
    net.initialize()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    ...                                                             # Gluon's own loop
    mean = hvd.allreduce(loss.mean(), name="loss")                  # a new array

Start it with ``farandole run -np 4 python script.py``. Arrays are dense, in host memory, of ``mx.nd`` or ``mx.np``; all
dtypes of MXNet are supported. ``autograd`` does not record collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import mxnet as _mx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.mxnet needs MXNet, which is not installed here: pip install 'farandole[mxnet]'", name="mxnet"
    ) from error

from farandole import data as data
from farandole.adapters.mxnet import verbs as _verbs
from farandole.gradients.join import join as join
from farandole.mxnet.compression import Compression as Compression
from farandole.mxnet.gradients import NDArrayDistributedGradients as _NDArrayDistributedGradients
from farandole.mxnet.ops import MxnetOps as _MxnetOps
from farandole.mxnet.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.mxnet.trainer import DistributedTrainer as DistributedTrainer
from farandole.runtime.collectives.basics import *  # noqa: F403
from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC

ops = _MxnetOps(_verbs, _mx.nd.NDArray, __name__)
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

DistributedGradients = _NDArrayDistributedGradients

if not _TYPE_CHECKING:  # type checkers and editors use the names defined and imported above
    __all__ = sorted([*_PUBLIC, "data", "DistributedGradients", "DistributedOptimizer", "DistributedTrainer"])  # noqa: PLE0605
