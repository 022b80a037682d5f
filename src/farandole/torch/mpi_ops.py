"""Everything that is not the optimizer, under the name that Horovod's scripts and tests import it by.

from farandole.torch.mpi_ops import allreduce, poll, synchronize
"""

from __future__ import annotations

from typing import Any

from farandole.errors import HorovodInternalError
from farandole.gradients.join import join
from farandole.runtime.collectives.basics import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    add_process_set,
    barrier,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    size,
    start_timeline,
    statistics,
    stop_timeline,
)
from farandole.runtime.session.init import init, is_initialized, shutdown
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adapter import handles
from farandole.torch.autograd import (
    Allgather as HorovodAllgather,
)
from farandole.torch.autograd import (
    Allreduce as HorovodAllreduce,
)
from farandole.torch.autograd import (
    Alltoall as HorovodAlltoall,
)
from farandole.torch.autograd import (
    Broadcast as HorovodBroadcast,
)
from farandole.torch.autograd import (
    GroupedAllreduce as HorovodGroupedAllreduce,
)
from farandole.torch.autograd import (
    Reducescatter as HorovodReducescatter,
)
from farandole.torch.exchanges import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from farandole.torch.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)

HorovodGroupedAllgather = HorovodAllgather  # both take any number of tensors
HorovodGroupedReducescatter = HorovodReducescatter

__all__ = [
    "Adasum",
    "Average",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodInternalError",
    "HorovodReducescatter",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
]


def poll(handle: int) -> bool:
    """True once ``synchronize(handle)`` would return at once; ``ValueError`` for a handle that is not in flight.

    >>> handle = hvd.allreduce_async(loss, name="loss")
    >>> while not hvd.poll(handle):
    ...     prepare_the_next_batch()
    """
    return handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for what an ``_async`` function began, and return its result; ``None`` for a handle that is not in flight.

    >>> handle = hvd.allreduce_async(loss, name="loss")
    >>> mean = hvd.synchronize(handle)

    Raises ``HorovodInternalError`` if the collective failed.
    """
    return handles.synchronize(handle)
