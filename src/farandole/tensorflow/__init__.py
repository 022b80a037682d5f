"""Farandole for TensorFlow: the module that a training script imports, with the interface of ``horovod.tensorflow``.

import farandole.tensorflow as hvd

hvd.init()

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(model(x), y)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

hvd.broadcast_variables(model.variables, root_rank=0)       # after the first step, or once the model is built
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

try:
    import tensorflow as _tf  # noqa: F401, ICN001 (keeps the public namespace small)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.tensorflow needs TensorFlow, which is not installed here: "
        "pip install 'farandole[tensorflow]' tensorflow (or tensorflow-cpu)",
        name="tensorflow",
    ) from error

from farandole.gradients.join import join as join
from farandole.runtime.collectives.basics import *  # noqa: F403
from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC
from farandole.runtime.session.init import forget_in_sessions as _forget_in_sessions
from farandole.tensorflow.compression import Compression as Compression
from farandole.tensorflow.functions import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
from farandole.tensorflow.functions import allgather_object as allgather_object  # type: ignore[assignment]
from farandole.tensorflow.functions import broadcast_global_variables as broadcast_global_variables
from farandole.tensorflow.functions import broadcast_object as broadcast_object  # type: ignore[assignment]
from farandole.tensorflow.functions import broadcast_object_fn as broadcast_object_fn
from farandole.tensorflow.functions import broadcast_variables as broadcast_variables
from farandole.tensorflow.gradients import DistributedGradientTape as DistributedGradientTape
from farandole.tensorflow.gradients import PartialDistributedGradientTape as PartialDistributedGradientTape
from farandole.tensorflow.gradients import ops as ops
from farandole.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.tensorflow.topology import local_rank_op as local_rank_op
from farandole.tensorflow.topology import local_size_op as local_size_op
from farandole.tensorflow.topology import process_set_included_op as process_set_included_op
from farandole.tensorflow.topology import rank_op as rank_op
from farandole.tensorflow.topology import size_op as size_op
from farandole.tensorflow.traces import forget_traces as _forget_traces

_forget_in_sessions(_forget_traces)

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

if _TYPE_CHECKING:
    from farandole import data as data
    from farandole.tensorflow import elastic as elastic
    from farandole.tensorflow.checkpoints import Checkpoints as Checkpoints
    from farandole.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization

_LATER = {
    "Checkpoints": "farandole.tensorflow.checkpoints",
    "SyncBatchNormalization": "farandole.tensorflow.sync_batch_norm",
    "data": "farandole.data",
    "elastic": "farandole.tensorflow.elastic",
}
"""Names that few scripts use; imported at first use, because one of them needs Keras."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _importlib.import_module(_LATER[name])
    found: object = getattr(module, name, module)
    globals()[name] = found
    return found


if not _TYPE_CHECKING:  # type checkers and editors use the names imported above
    _own = (
        "BroadcastGlobalVariablesHook", "DistributedGradientTape", "DistributedOptimizer",
        "PartialDistributedGradientTape", "broadcast_global_variables", "broadcast_object_fn", "broadcast_variables",
        "local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op",
    )  # fmt: skip
    __all__ = sorted([*_PUBLIC, *_own, *_LATER])  # noqa: PLE0605
