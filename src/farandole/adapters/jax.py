"""JAX's arrays as memory for the runtime: host memory, which results are written to before anybody sees them.

verbs.allreduce([jnp.ones(3)], "ones", Reduction(), global_process_set).run()

An array of JAX never changes. So what an engine writes to is always memory of a new one, which nobody has read yet, and
verbs in place are refused. What it reads is used as it lies.

Arrays of NumPy become arrays of JAX, but for those of 64 bits where JAX has 32: these stay NumPy's, and so do results.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TypeGuard, final

import jax
import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import DTYPES
from farandole.adapters.numpy import adapter as numpy_adapter
from farandole.collective import Array, DType
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.verbs import Verbs

__all__ = ["HostCopy", "JaxAdapter", "adapter", "is_cut", "new_array", "travelling", "travels", "unwritable", "verbs"]

_ALIGNMENT = 64
"""Bytes: XLA takes memory of others as it is where it lies like this, and copies it else."""

_WIDE = 8
"""Bytes of an element from which on JAX may have no such dtype."""


@final
class HostCopy(np.ndarray[Any, Any]):
    """Values of an array of JAX, in memory of NumPy; those of an array of NumPy are no such."""


@final
class JaxAdapter(TensorAdapter[Any]):
    """Arrays in host memory, on one device or several; NumPy's arrays and Python's numbers become such."""

    def array(self, tensor: Any) -> Array:
        """See ``Adapter``; of what ``dense``, ``clone`` or ``empty`` has returned."""
        if isinstance(tensor, np.ndarray):
            return numpy_adapter.array(tensor)
        dtype = travelling(tensor.dtype)
        # It blocks until the array is computed, and is the memory of the array whether or not that is someone else's.
        # While the capsule is there, no program that the array is given away to takes that memory for its results.
        return Array(tensor.unsafe_buffer_pointer(), tensor.size, dtype, (tensor, tensor.__dlpack__()))

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """See ``Adapter``."""
        return np.shape(tensor)

    def dense(self, tensor: Any) -> Any:
        """See ``Adapter``; one array of all parts, where it lies on several devices."""
        found = _on_host(tensor)
        if isinstance(found, np.ndarray):
            return numpy_adapter.dense(found)
        return found if len(found.devices()) == 1 and _is_row_major(found) else self.clone(found)

    def clone(self, tensor: Any) -> Any:
        """See ``Adapter``."""
        found = _on_host(tensor)
        return numpy_adapter.clone(found) if isinstance(found, np.ndarray) else new_array(found, found, copy=True)

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """See ``Adapter``."""
        return (
            np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else _placed(_aligned(shape, like.dtype), like)
        )

    def assign(self, target: Any, source: Any) -> None:
        """See ``Adapter``; never asked, as nothing is written in place."""
        raise UnsupportedError(_IN_PLACE)

    def written(self, tensor: Any) -> None:
        """See ``Adapter``; nobody has seen it yet."""

    def is_tensor(self, leaf: object) -> TypeGuard[Any]:
        """See ``TensorAdapter``; NumPy's arrays are kept beside those of JAX."""
        return isinstance(leaf, jax.Array) or numpy_adapter.is_tensor(leaf)

    def spec(self, tensor: Any) -> TensorSpec:
        """See ``TensorAdapter``."""
        return TensorSpec(tuple(tensor.shape), tensor.dtype.name, tensor.dtype.itemsize)

    def make(self, spec: TensorSpec) -> Any:
        """See ``TensorAdapter``."""
        return new_array(np.empty(spec.shape, np.dtype(getattr(jax.numpy, spec.dtype))))

    def view(self, memory: Array, spec: TensorSpec) -> Any | None:
        """See ``TensorAdapter``; never, as memory may change, and arrays may not."""
        return None

    def host_bytes(self, tensor: Any) -> Array:
        """See ``TensorAdapter``; of a copy, as nobody may write to the array itself."""
        held = np.array(tensor)
        return Array(held.ctypes.data, held.nbytes, DType.UINT8, held)

    def require_kept(self, tensor: Any) -> None:
        """See ``TensorAdapter``."""
        if isinstance(tensor, jax.Array) and jax.numpy.issubdtype(tensor.dtype, jax.dtypes.prng_key):
            raise UsageError(f"an array of {tensor.dtype} cannot be kept: keep jax.random.key_data() of it")

    def host_copy(self, tensor: Any) -> Any:
        """See ``TensorAdapter``; of NumPy, whose memory no program takes for its results."""
        self.require_kept(tensor)
        held = np.array(tensor)
        return held.view(HostCopy) if isinstance(tensor, jax.Array) else held


def travels(dtype: Any) -> bool:
    """True for a dtype that engines know."""
    return dtype.name == "bfloat16" or dtype in DTYPES


@functools.cache  # the name of a dtype takes microseconds
def travelling(dtype: Any) -> DType:
    """A dtype of JAX as engines know it; raises ``UnsupportedError`` for one that they do not."""
    known = not jax.numpy.issubdtype(dtype, jax.dtypes.extended)  # keys of random numbers, which NumPy cannot name
    found = DType.BFLOAT16 if dtype.name == "bfloat16" else DTYPES.get(dtype) if known else None
    if found is None:
        raise UnsupportedError(
            f"an array of {dtype} does not travel; these do: {', '.join(d.label for d in DType)}: "
            "pass x.astype() of one of them, or objects to broadcast_object or allgather_object, as of a key "
            "np.asarray(jax.random.key_data(key))"
        )
    return found


def is_cut(values: Any) -> bool:
    """True for an array or a scalar of NumPy of which JAX, as it is set here, would make one with less bits."""
    is_wide = isinstance(values, np.ndarray | np.generic) and values.dtype.itemsize >= _WIDE
    return bool(is_wide and jax.dtypes.canonicalize_dtype(values.dtype) != values.dtype.newbyteorder("="))


def new_array(values: npt.NDArray[Any], like: Any = None, copy: bool = False) -> Any:
    """An array of these values on the device of ``like``, in their memory if that may be: it is the array's then."""
    if copy or values.ctypes.data % _ALIGNMENT or not values.flags.c_contiguous:
        held = _aligned(values.shape, values.dtype)
        np.copyto(held, values)
        values = held
    return _placed(values, like)


def unwritable(tensor: Any) -> Any:  # noqa: ARG001 (as ``Verbs`` calls it)
    """Refuse a verb in place."""
    raise UsageError(_IN_PLACE)


_IN_PLACE = (
    "arrays of JAX cannot be written in place: call the function without the underscore at its end, which returns new "
    "arrays"
)


def _on_host(tensor: Any) -> Any:
    """``tensor`` as an array of JAX in host memory, or one of NumPy that JAX would cut.

    Raises for one that is elsewhere, or not all here.
    """
    if not isinstance(tensor, jax.Array):
        if not isinstance(tensor, np.ndarray | np.generic | bool | int | float | complex):
            raise UsageError(
                f"a {type(tensor).__name__} is neither an array nor a number: pass a pytree of arrays, or take "
                "broadcast_object or allgather_object"
            )
        if isinstance(tensor, np.ndarray) and not tensor.dtype.isnative:
            tensor = tensor.astype(tensor.dtype.newbyteorder("="))
        return np.asarray(tensor) if is_cut(tensor) else jax.numpy.asarray(tensor)
    if jax.numpy.issubdtype(tensor.dtype, jax.dtypes.extended):
        travelling(tensor.dtype)  # it refuses
    platforms = {device.platform for device in tensor.devices()}
    if platforms != {"cpu"}:
        raise UnsupportedError(
            f"an array on {' and '.join(sorted(platforms))} does not travel: pass "
            "jax.device_put(x, jax.devices('cpu')[0]), and put the result back"
        )
    if not tensor.is_fully_addressable:
        raise UnsupportedError(
            "an array that is sharded over the processes of jax.distributed does not travel: pass the part of this "
            "process, or take jax.lax.psum"
        )
    return tensor


def _is_row_major(tensor: Any) -> bool:
    """True unless a script has given the array another layout in memory."""
    if tensor.ndim < 2:
        return True
    held: Any = getattr(tensor, "format", None) or tensor.layout  # its name until JAX 0.7
    layout = held.layout if hasattr(held, "layout") else held.device_local_layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(tensor.ndim))


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


def _placed(values: npt.NDArray[Any], like: Any) -> Any:
    """An array where ``like`` is; it may be used with arrays on other devices if that may be.

    Raises ``UnsupportedError`` for a dtype that JAX would cut to 32 bits, without a word.
    """
    if is_cut(values):
        raise UnsupportedError(
            f"an array of {values.dtype} cannot be one of JAX here, which would cut it to 32 bits: set "
            'JAX_ENABLE_X64=1, or call jax.config.update("jax_enable_x64", True) first'
        )
    devices = like.sharding.device_set if isinstance(like, jax.Array) else ()  # known also of one that was donated
    is_bound = len(devices) == 1 and like.committed
    return jax.device_put(values, next(iter(devices)) if is_bound else None)


adapter = JaxAdapter()
verbs: Verbs[Any] = Verbs(adapter, unwritable)
