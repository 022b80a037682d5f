"""Farandole for JAX: collectives on arrays and pytrees, inside and outside of ``jit``, and optax integration.

    import jax, optax
    import farandole.jax as hvd

    hvd.init()
    params = hvd.broadcast_parameters(params, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optax.adam(1e-3 * hvd.size()))     # averages the gradients of all ranks
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

Start it with ``farandole run -np 4 python script.py``. A pytree is a group: its arrays are reduced together. Arrays of
a GPU are copied to host memory, reduced there, and put back; a program that is compiled for a GPU can have no
collective: call it between programs. For dtypes see ``farandole.collective.DType``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any
from typing import cast as _cast

try:
    import jax as _jax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.jax needs JAX, which is not installed here: pip install 'farandole[jax]'", name="jax"
    ) from error

from farandole import data as data
from farandole.gradients.join import join as join
from farandole.jax import cluster_env as _cluster_env  # noqa: F401 (JAX finds it)
from farandole.jax.compression import JaxCompression as _JaxCompression
from farandole.jax.executables import forget_traces as _forget_traces
from farandole.jax.gradients import JaxDistributedGradients as _JaxDistributedGradients
from farandole.jax.ops import JaxOps as _JaxOps
from farandole.jax.ops import TreeVerbs as _TreeVerbs
from farandole.jax.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.jax.optimizer import broadcast_optimizer_state as broadcast_optimizer_state
from farandole.jax.overlap import value_and_grad as value_and_grad
from farandole.runtime.collectives.basics import *  # noqa: F403
from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC
from farandole.runtime.session.init import forget_in_sessions as _forget_in_sessions

_forget_in_sessions(_forget_traces)

ops = _JaxOps(_cast("_Any", _TreeVerbs()), _jax.Array, __name__)
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

Compression = _JaxCompression
DistributedGradients = _JaxDistributedGradients

if not _TYPE_CHECKING:  # type checkers and editors use the names defined and imported above
    _own = ("data", "DistributedGradients", "DistributedOptimizer", "broadcast_optimizer_state", "value_and_grad")
    __all__ = sorted([*_PUBLIC, *_own])  # noqa: PLE0605
