"""JAX arrays as memory for the runtime: host memory, written to only before the script gets the array.

verbs.allreduce([jnp.ones(3)], "ones", Reduction(), global_process_set).run()

A JAX array never changes. So engines write only to the memory of new arrays, which the script has not read yet, and
in-place verbs are refused. Engines read input arrays without a copy.

NumPy arrays become JAX arrays, except 64-bit arrays if JAX is set to 32 bits: these and their results stay NumPy's.
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
"""Alignment in bytes: XLA uses foreign memory with this alignment directly, and copies other memory."""

_WIDE = 8
"""Minimum bytes of an element whose dtype JAX may not support."""


@final
class HostCopy(np.ndarray[Any, Any]):
    """Copy of a JAX array in NumPy memory. A copy of a NumPy array is a plain array."""


@final
class JaxAdapter(TensorAdapter[Any]):
    """Arrays in host memory, on one or several devices. NumPy arrays and Python numbers are converted."""

    def array(self, tensor: Any) -> Array:
        """See ``Adapter``; only for results of ``dense``, ``clone`` or ``empty``."""
        if isinstance(tensor, np.ndarray):
            return numpy_adapter.array(tensor)
        dtype = travelling(tensor.dtype)
        # ``unsafe_buffer_pointer`` blocks until the array is computed; it works for foreign memory, too. While the
        # capsule lives, no program that gets the array by donation reuses its memory for results.
        return Array(tensor.unsafe_buffer_pointer(), tensor.size, dtype, (tensor, tensor.__dlpack__()))

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """See ``Adapter``."""
        return np.shape(tensor)

    def dense(self, tensor: Any) -> Any:
        """See ``Adapter``; an array on several devices becomes one array of all its parts."""
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
        """See ``Adapter``; never called, because nothing is written in place."""
        raise UnsupportedError(_IN_PLACE)

    def written(self, tensor: Any) -> None:
        """See ``Adapter``; nothing to do, because the script has not read the array yet."""

    def is_tensor(self, leaf: object) -> TypeGuard[Any]:
        """See ``TensorAdapter``; NumPy arrays as well as JAX arrays."""
        return isinstance(leaf, jax.Array) or numpy_adapter.is_tensor(leaf)

    def spec(self, tensor: Any) -> TensorSpec:
        """See ``TensorAdapter``."""
        return TensorSpec(tuple(tensor.shape), tensor.dtype.name, tensor.dtype.itemsize)

    def make(self, spec: TensorSpec) -> Any:
        """See ``TensorAdapter``."""
        return new_array(np.empty(spec.shape, np.dtype(getattr(jax.numpy, spec.dtype))))

    def view(self, memory: Array, spec: TensorSpec) -> Any | None:
        """See ``TensorAdapter``; always ``None``, because memory may change and JAX arrays may not."""
        return None

    def host_bytes(self, tensor: Any) -> Array:
        """See ``TensorAdapter``; always a copy, because the array itself must not be written."""
        held = np.array(tensor)
        return Array(held.ctypes.data, held.nbytes, DType.UINT8, held)

    def require_kept(self, tensor: Any) -> None:
        """See ``TensorAdapter``."""
        if isinstance(tensor, jax.Array) and jax.numpy.issubdtype(tensor.dtype, jax.dtypes.prng_key):
            raise UsageError(f"an array of {tensor.dtype} cannot be kept: keep jax.random.key_data() of it")

    def host_copy(self, tensor: Any) -> Any:
        """See ``TensorAdapter``; a NumPy array, because no JAX program reuses NumPy memory for results."""
        self.require_kept(tensor)
        held = np.array(tensor)
        return held.view(HostCopy) if isinstance(tensor, jax.Array) else held


def travels(dtype: Any) -> bool:
    """True for a dtype that engines support."""
    return dtype.name == "bfloat16" or dtype in DTYPES


@functools.cache  # the name of a dtype takes microseconds
def travelling(dtype: Any) -> DType:
    """Engines' ``DType`` of a JAX dtype; raises ``UnsupportedError`` if engines do not support it."""
    known = not jax.numpy.issubdtype(dtype, jax.dtypes.extended)  # PRNG keys, for which NumPy has no dtype
    found = DType.BFLOAT16 if dtype.name == "bfloat16" else DTYPES.get(dtype) if known else None
    if found is None:
        raise UnsupportedError(
            f"an array of {dtype} does not travel; these do: {', '.join(d.label for d in DType)}: "
            "pass x.astype() of one of them, or objects to broadcast_object or allgather_object, as of a key "
            "np.asarray(jax.random.key_data(key))"
        )
    return found


def is_cut(values: Any) -> bool:
    """True for a NumPy array or scalar that JAX, with its current settings, would convert to fewer bits."""
    is_wide = isinstance(values, np.ndarray | np.generic) and values.dtype.itemsize >= _WIDE
    return bool(is_wide and jax.dtypes.canonicalize_dtype(values.dtype) != values.dtype.newbyteorder("="))


def new_array(values: npt.NDArray[Any], like: Any = None, copy: bool = False) -> Any:
    """JAX array of ``values`` on the device of ``like``. It takes over the memory of ``values`` if alignment allows."""
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
    """``tensor`` as a JAX array in host memory, or as a NumPy array if JAX would cut its bits.

    Raises for an array on another device, or with parts in other processes.
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
        travelling(tensor.dtype)  # raises
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
    """True unless the script chose another memory layout for the array."""
    if tensor.ndim < 2:
        return True
    held: Any = getattr(tensor, "format", None) or tensor.layout  # ``layout`` before JAX 0.7
    layout = held.layout if hasattr(held, "layout") else held.device_local_layout
    return layout is None or tuple(layout.major_to_minor) == tuple(range(tensor.ndim))


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


def _placed(values: npt.NDArray[Any], like: Any) -> Any:
    """Array on the device of ``like``; uncommitted if ``like`` is, so that it combines with arrays on other devices.

    Raises ``UnsupportedError`` for a dtype that JAX would silently cut to 32 bits.
    """
    if is_cut(values):
        raise UnsupportedError(
            f"an array of {values.dtype} cannot be one of JAX here, which would cut it to 32 bits: set "
            'JAX_ENABLE_X64=1, or call jax.config.update("jax_enable_x64", True) first'
        )
    devices = like.sharding.device_set if isinstance(like, jax.Array) else ()  # works for donated arrays, too
    is_bound = len(devices) == 1 and like.committed
    return jax.device_put(values, next(iter(devices)) if is_bound else None)


adapter = JaxAdapter()
verbs: Verbs[Any] = Verbs(adapter, unwritable)
