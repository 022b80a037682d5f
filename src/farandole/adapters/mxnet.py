"""MXNet arrays as memory for the runtime: arrays of ``mx.nd`` and of ``mx.np`` on the host.

    verbs.allreduce([mx.nd.ones(3)], "ones", Reduction(), global_process_set).run()

Needs MXNet 1.9 and the NumPy that it was built for.
"""

# Threads. MXNet runs operators asynchronously on threads of its engine, ordered by the arrays that each operator reads
# and writes. Here an array's memory is accessed without the knowledge of that engine. So ``memory`` first waits for
# all operators queued before: for those that write the array, or its values would be missing, and for those that read
# the array, or they would read the result of the collective. ``MXNDArrayWaitToRead`` waits for the writers, and raises
# their errors. ``MXNDArrayWaitToWrite`` waits for both: it queues an empty write operator, which runs after all others.
#
# MXNet need not be notified afterwards. An operator that the script calls after the verb has returned is queued after
# the last write, and the queue is a memory barrier. An operator that the script calls between an ``_async`` variant and
# ``synchronize`` is not ordered, as in every framework. Views (``x[2:4]``) share the engine variable of their base, so
# a wait for one waits for all. The ``Array`` keeps an array in flight alive, or its memory could be reused.
#
# A wait covers only operators in the engine's queue: operators that another thread of the script still collects
# (``mx.engine.bulk``) are not yet queued, and no wait covers them.

from __future__ import annotations

import ctypes
import math
from typing import Any, TypeAlias, TypeGuard, final

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from farandole.adapters.numpy import adapter as numpy_adapter
from farandole.collective import Array, DType
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.verbs import Verbs

__all__ = ["BFLOAT16", "MxnetAdapter", "NDArray", "adapter", "dtype_of", "new_array", "values", "verbs"]

NDArray: TypeAlias = Any
"""An ``mx.nd.NDArray``, or its subclass ``mx.np.ndarray``; MXNet has no type annotations."""

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""MXNet's NumPy dtype for bfloat16."""
DTYPES: dict[np.dtype[Any], DType] = {
    BFLOAT16: DType.BFLOAT16,
    **{
        np.dtype(dtype.label): dtype
        for dtype in (DType.UINT8, DType.INT8, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)
    },
    np.dtype(bool): DType.BOOL,
}
_LABELS = {dtype.label: known for known, dtype in DTYPES.items()}


@final
class MxnetAdapter(TensorAdapter[NDArray]):
    """Dense arrays in host memory, always in row-major order: MXNet has no strides."""

    def array(self, tensor: NDArray) -> Array:
        """See ``Adapter``; waits until no operator of MXNet uses the array."""
        return memory(self.dense(tensor))

    def shape(self, tensor: NDArray) -> tuple[int, ...]:
        """See ``Adapter``."""
        return tuple(tensor.shape)

    def dense(self, tensor: NDArray) -> NDArray:
        """See ``Adapter``; raises for anything but a dense array in host memory."""
        if not isinstance(tensor, mx.nd.NDArray):
            raise UsageError(
                f"a {type(tensor).__name__} is no array of MXNet: pass mx.nd.array() of it, or take "
                "broadcast_object or allgather_object"
            )
        if tensor.stype != "default":
            raise UnsupportedError(f"a {tensor.stype} array does not travel: pass x.tostype('default')")
        if tensor.context.device_type not in ("cpu", "cpu_pinned", "cpu_shared"):
            raise UnsupportedError(f"an array on {tensor.context} does not travel: pass x.as_in_context(mx.cpu())")
        return tensor

    def clone(self, tensor: NDArray) -> NDArray:
        """See ``Adapter``; without MXNet's copy operator, which refuses arrays without elements."""
        found = self.dense(tensor)
        copy = self.empty(self.shape(found), found)
        self.assign(copy, found)
        return copy

    def empty(self, shape: tuple[int, ...], like: NDArray) -> NDArray:
        """See ``Adapter``."""
        return new_array(shape, like.dtype, isinstance(like, mx.np.ndarray))

    def assign(self, target: NDArray, source: NDArray) -> None:
        """See ``Adapter``."""
        np.copyto(values(target), values(source), casting="equiv")

    def written(self, tensor: NDArray) -> None:
        """See ``Adapter``; nothing to do, because MXNet's engine caches no values."""

    def is_tensor(self, leaf: object) -> TypeGuard[NDArray]:
        """See ``TensorAdapter``."""
        return isinstance(leaf, mx.nd.NDArray) and leaf.stype == "default"

    def spec(self, tensor: NDArray) -> TensorSpec:
        """See ``TensorAdapter``."""
        dtype = dtype_of(tensor)
        return TensorSpec(self.shape(tensor), dtype.label, dtype.itemsize)

    def make(self, spec: TensorSpec) -> NDArray:
        """See ``TensorAdapter``."""
        return new_array(spec.shape, _LABELS[spec.dtype], mx.util.is_np_array())

    def view(self, memory: Array, spec: TensorSpec) -> None:
        """See ``TensorAdapter``; always ``None``, because MXNet arrays need MXNet's own memory."""

    def host_bytes(self, tensor: NDArray) -> Array:
        """See ``TensorAdapter``."""
        found = self.array(tensor)
        return Array(found.address, found.nbytes, DType.UINT8, tensor)

    def host_copy(self, tensor: NDArray) -> NDArray:
        """See ``TensorAdapter``."""
        return self.clone(tensor)


def dtype_of(tensor: NDArray) -> DType:
    """The ``DType`` of an array; engines support all dtypes of MXNet."""
    return DTYPES[np.dtype(tensor.dtype)]


def memory(tensor: NDArray) -> Array:
    """Wait until no operator queued before reads or writes a dense host array, and return its memory."""
    check_call(_LIB.MXNDArrayWaitToRead(tensor.handle))
    check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))
    address = ctypes.c_void_p()
    # Last: this call also converts an array that an operator left in oneDNN's layout.
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    return Array(address.value or 0, math.prod(tensor.shape), dtype_of(tensor), tensor)


def values(tensor: NDArray) -> Any:
    """Memory of an array as a writable ``np.ndarray``, with the same waits; bfloat16 as ``uint16``."""
    found = memory(tensor)
    dtype = DType.UINT16 if found.dtype is DType.BFLOAT16 else found.dtype
    return numpy_adapter.view(found, TensorSpec(tuple(tensor.shape), dtype.label, dtype.itemsize))


def new_array(shape: tuple[int, ...], dtype: Any, is_np: bool) -> NDArray:
    """New array of ``mx.np`` or of ``mx.nd`` with undefined values."""
    with mx.util.np_shape(True):  # without it, MXNet treats a length of 0 and an empty shape as unknown
        made = mx.nd.empty(shape, dtype=dtype)
    return made.as_np_ndarray() if is_np else made


adapter = MxnetAdapter()
verbs: Verbs[NDArray] = Verbs(adapter)
