"""MXNet's arrays as memory for the runtime: those of ``mx.nd`` and of ``mx.np`` on the host.

    verbs.allreduce([mx.nd.ones(3)], "ones", Reduction(), global_process_set).run()

Needs MXNet 1.9 and the NumPy that it was made for.
"""

# Threads. MXNet runs operators on threads of its engine, in an order that it takes from what each of them reads and
# writes; an array is a promise until then. Here its memory is read and written behind the back of that engine, so
# ``memory`` first waits for what the script has asked for before: operators that write the array, or its values would
# not be there, and operators that read it, or they would find the result of the collective in their place.
# ``MXNDArrayWaitToRead`` is the first wait, and raises what those operators raised; ``MXNDArrayWaitToWrite`` is both:
# it gives the engine a writer without work, which comes after all others.
#
# Nothing has to be told afterwards. An operator that the script asks for after the verb has returned is given to the
# engine after the last write, and the queue between them orders memory. One that it asks for meanwhile, between an
# ``_async`` variant and ``synchronize``, is ordered by nothing, as with every framework. Views (``x[2:4]``) share the
# variable of what they are cut from, so waiting for one waits for all; and an array that is in flight is kept by its
# ``Array``, or its memory would be another's.
#
# Waits are for the thread that asks: what another thread of the script has begun to collect (``mx.engine.bulk``) is not
# yet with the engine, and nobody can wait for it.

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
"""An ``mx.nd.NDArray``, or an ``mx.np.ndarray``, which is one; MXNet has no types."""

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""MXNet's own way of saying it to NumPy."""
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
    """Dense arrays in host memory, which are all in row-major order; there is no other stride in MXNet."""

    def array(self, tensor: NDArray) -> Array:
        """See ``Adapter``; waits until MXNet is done with it."""
        return memory(self.dense(tensor))

    def shape(self, tensor: NDArray) -> tuple[int, ...]:
        """See ``Adapter``."""
        return tuple(tensor.shape)

    def dense(self, tensor: NDArray) -> NDArray:
        """See ``Adapter``; raises for everything that is no dense array of the host."""
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
        """See ``Adapter``; not by MXNet's operator, which refuses arrays without elements."""
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
        """See ``Adapter``; MXNet's engine counts operators, and keeps no values."""

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
        """See ``TensorAdapter``; MXNet's arrays lie in memory of its own."""

    def host_bytes(self, tensor: NDArray) -> Array:
        """See ``TensorAdapter``."""
        found = self.array(tensor)
        return Array(found.address, found.nbytes, DType.UINT8, tensor)

    def host_copy(self, tensor: NDArray) -> NDArray:
        """See ``TensorAdapter``."""
        return self.clone(tensor)


def dtype_of(tensor: NDArray) -> DType:
    """The dtype of an array; all that MXNet has travel."""
    return DTYPES[np.dtype(tensor.dtype)]


def memory(tensor: NDArray) -> Array:
    """The memory of a dense array of the host, once no operator that was asked for before reads or writes it."""
    check_call(_LIB.MXNDArrayWaitToRead(tensor.handle))
    check_call(_LIB.MXNDArrayWaitToWrite(tensor.handle))
    address = ctypes.c_void_p()
    # Last: it also brings back from oneDNN's layout what an operator has left in that.
    check_call(_LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    return Array(address.value or 0, math.prod(tensor.shape), dtype_of(tensor), tensor)


def values(tensor: NDArray) -> Any:
    """The memory of an array as an ``np.ndarray`` that can be written, with the same waits; bfloat16 as ``uint16``."""
    found = memory(tensor)
    dtype = DType.UINT16 if found.dtype is DType.BFLOAT16 else found.dtype
    return numpy_adapter.view(found, TensorSpec(tuple(tensor.shape), dtype.label, dtype.itemsize))


def new_array(shape: tuple[int, ...], dtype: Any, is_np: bool) -> NDArray:
    """A new array of ``mx.np`` or of ``mx.nd``, whose values are not defined."""
    with mx.util.np_shape(True):  # else MXNet takes a length of 0, and no lengths, for unknown ones
        made = mx.nd.empty(shape, dtype=dtype)
    return made.as_np_ndarray() if is_np else made


adapter = MxnetAdapter()
verbs: Verbs[NDArray] = Verbs(adapter)
