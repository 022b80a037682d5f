"""Farandole for NumPy: collectives on arrays and numbers, without a deep-learning framework.

    import numpy as np
    import farandole.numpy as hvd

    hvd.init()
    rows = np.array_split(data, hvd.size())[hvd.rank()]
    mean = hvd.allreduce(rows.sum(0), op=hvd.Sum) / len(data)       # a new array
    hvd.broadcast_(mean, root_rank=0)                               # in place
    slowest = hvd.allreduce(seconds, op=hvd.Max)                    # a float of Python comes back as one
    names = hvd.allgather_object(name)                              # any object

Start it with ``farandole run -np 4 python script.py``. Arrays may have any strides and either byte order; in-place
functions need writable arrays. Dtypes: see ``farandole.collective.DType``; bfloat16 is the one of ``ml_dtypes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import final as _final

try:
    import numpy as _np  # noqa: ICN001 (keeps the public namespace small)
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.numpy needs NumPy, which is not installed here: pip install 'farandole[numpy]'", name="numpy"
    ) from error

from farandole import data as data
from farandole.adapters.numpy import NumpyValue as _NumpyValue
from farandole.adapters.numpy import verbs as _verbs
from farandole.gradients.join import join as join
from farandole.numpy.compression import NumpyCompression as _NumpyCompression
from farandole.numpy.gradients import DistributedGradients as DistributedGradients
from farandole.numpy.noise import NumpyNoiseScale as _NumpyNoiseScale
from farandole.runtime.collectives.basics import *  # noqa: F403
from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC
from farandole.runtime.collectives.ops import Ops as _Ops


@_final
class NumpyOps(_Ops[_NumpyValue]):
    """The functions of ``farandole.numpy``."""

    def _counts(self, counts: tuple[int, ...]) -> _NumpyValue:
        return _np.array(counts, _np.int32)


ops = NumpyOps(_verbs, _np.ndarray, __name__)
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

Compression = _NumpyCompression
NoiseScale = _NumpyNoiseScale

if not _TYPE_CHECKING:  # type checkers and editors use the names defined and imported above
    __all__ = sorted([*_PUBLIC, "data", "DistributedGradients", "NoiseScale"])  # noqa: PLE0605
