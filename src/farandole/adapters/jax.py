"""JAX arrays as memory for the runtime: NumPy arrays of their values, and JAX arrays made of the results.

[total] = verbs.allreduce(toward_host([x]), "x", Reduction(), global_process_set).run()      # NumPy's
result = placed(x, total)                                                                     # JAX's, where ``x`` is

A JAX array never changes, so in-place verbs are refused. Engines read an array without a copy if it is in host memory;
values of another memory, as of a GPU, are copied, through pinned host memory if the device has some. Results are
written to new NumPy memory, which becomes a JAX array without a copy on a CPU, and is copied to any other device.

NumPy arrays become JAX arrays, except 64-bit arrays if JAX is set to 32 bits: these and their results stay NumPy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
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

__all__ = [
    "HostCopy", "JaxAdapter", "adapter", "is_cut", "new_array", "pinned_copies", "placed", "toward_host",
    "travelling", "travels", "unwritable", "verbs",
]  # fmt: skip

_ALIGNMENT = 64
"""Alignment in bytes: XLA uses foreign memory with this alignment directly, and copies other memory."""

_WIDE = 8
"""Minimum bytes of an element whose dtype JAX may not support."""

_HOST_DEVICES = (1, 3)
"""DLPack's types of devices whose memory the host reads and writes: ``kDLCPU``, ``kDLCUDAHost``."""


@final
class HostCopy(np.ndarray[Any, Any]):
    """Copy of a JAX array in NumPy memory. A copy of a NumPy array is a plain array."""


@final
class JaxAdapter(TensorAdapter[Any]):
    """Values of arrays on any devices of this process, as NumPy arrays; also of NumPy arrays and Python numbers."""

    def array(self, tensor: Any) -> Array:
        """See ``Adapter``; only for results of ``dense``, ``clone`` or ``empty``."""
        return numpy_adapter.array(tensor)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """See ``Adapter``."""
        return np.shape(tensor)

    def dense(self, tensor: Any) -> Any:
        """See ``Adapter``; one array of all parts of an array on several devices.

        While a view of an array's memory lives, no program that gets the array by donation reuses it for results.
        """
        return numpy_adapter.dense(_values(tensor))

    def clone(self, tensor: Any) -> Any:
        """See ``Adapter``."""
        return _copied(_values(tensor))

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """See ``Adapter``."""
        return _aligned(shape, like.dtype)

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


def toward_host(leaves: Sequence[Any]) -> Sequence[Any]:
    """``leaves``, with copies in host memory for the JAX arrays that are elsewhere, as on a GPU.

    It waits for no copy, so that copies of several arrays overlap; who reads the values of one waits for it.
    """
    away = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and not _is_on_host(leaf)]
    if not away:
        return leaves
    found = list(leaves)
    for i, copied in zip(away, pinned_copies([leaves[i] for i in away]), strict=True):
        found[i] = copied
    return found


def pinned_copies(arrays: Sequence[Any]) -> Sequence[Any]:
    """Copies in the pinned host memory of the arrays' devices, under way; ``arrays`` if there is no such memory."""
    try:
        to = [array.sharding.with_memory_kind("pinned_host") for array in arrays]
        copies: Sequence[Any] = jax.device_put(list(arrays), to)
    except (ValueError, jax.errors.JaxRuntimeError):  # a device without pinned memory, or with too little of it
        return arrays
    return copies


def placed(like: Any, values: npt.NDArray[Any]) -> Any:
    """Result of a collective for the input ``like``: a JAX array where ``like`` is, or NumPy's if JAX would cut it."""
    return values if is_cut(values) and not isinstance(like, jax.Array) else new_array(values, like)


def new_array(values: npt.NDArray[Any], like: Any = None, copy: bool = False) -> Any:
    """JAX array of ``values`` where ``like`` is. On a CPU it takes over the memory of ``values`` if alignment allows.

    It is on the devices of ``like``, in the same kind of memory, and committed if ``like`` is; on the default device
    if ``like`` is no JAX array, or is on several devices and has another shape. Raises ``UnsupportedError`` for a dtype
    that JAX would silently cut to 32 bits.
    """
    if is_cut(values):
        raise UnsupportedError(
            f"an array of {values.dtype} cannot be one of JAX here, which would cut it to 32 bits: set "
            'JAX_ENABLE_X64=1, or call jax.config.update("jax_enable_x64", True) first'
        )
    if copy or values.ctypes.data % _ALIGNMENT or not values.flags.c_contiguous:
        values = _copied(values)
    if not isinstance(like, jax.Array):
        return jax.device_put(values)
    devices = like.sharding.device_set  # this and ``committed`` work for donated arrays, too
    if len(devices) > 1 and values.shape != like.shape:
        return jax.device_put(values)
    if like.committed:
        return jax.device_put(values, like.sharding)
    with jax.default_device(next(iter(devices))):  # uncommitted, so that it combines with arrays on other devices
        return jax.device_put(values)


def unwritable(tensor: Any) -> Any:  # noqa: ARG001 (as ``Verbs`` calls it)
    """Refuse a verb in place."""
    raise UsageError(_IN_PLACE)


_IN_PLACE = (
    "arrays of JAX cannot be written in place: call the function without the underscore at its end, which returns new "
    "arrays"
)


def _values(tensor: Any) -> npt.NDArray[Any]:
    """Values in host memory, of a dtype that travels: a view if they are there, else a copy.

    Raises for an array with parts in other processes, and for what is no array.
    """
    if isinstance(tensor, jax.Array):
        travelling(tensor.dtype)
        if not tensor.is_fully_addressable:
            raise UnsupportedError(
                "an array that is sharded over the processes of jax.distributed does not travel: pass the part of "
                "this process, or take jax.lax.psum"
            )
        return np.asarray(toward_host([tensor])[0])
    if not isinstance(tensor, np.ndarray | np.generic | bool | int | float | complex):
        raise UsageError(
            f"a {type(tensor).__name__} is neither an array nor a number: pass a pytree of arrays, or take "
            "broadcast_object or allgather_object"
        )
    found = np.asarray(tensor if isinstance(tensor, np.ndarray | np.generic) else jax.numpy.asarray(tensor))
    if not found.dtype.isnative:
        found = found.astype(found.dtype.newbyteorder("="))
    travelling(found.dtype)
    return found


def _is_on_host(array: Any) -> bool:
    """True if NumPy can view the memory of an array, or of each of its parts."""
    if array.is_deleted() or not array.is_fully_addressable or jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        return True  # not to be copied, because the verb raises
    part = array.addressable_data(0) if len(array.sharding.device_set) > 1 else array
    try:
        return part.__dlpack_device__()[0] in _HOST_DEVICES
    except BufferError:  # a device that DLPack does not know
        return False


def _copied(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    held = _aligned(values.shape, values.dtype)
    np.copyto(held, values)
    return held


def _aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT
    return raw[begin : begin + nbytes].view(dtype).reshape(shape)


adapter = JaxAdapter()
verbs: Verbs[Any] = Verbs(adapter, unwritable)
