"""NumPy arrays as memory for the runtime, and scalars as arrays without dimensions.

verbs.allreduce([np.ones(3), 2.5], "pair", Reduction(), global_process_set).run()
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, TypeAlias, TypeGuard, final

import numpy as np
import numpy.typing as npt

from farandole.collective import Array, DType
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec
from farandole.runtime.collectives.verbs import Verbs

__all__ = ["DTYPES", "NumpyAdapter", "NumpyValue", "adapter", "unmasked", "verbs"]

NumpyValue: TypeAlias = Any
"""An ``np.ndarray`` of a supported dtype, a NumPy scalar, or a Python number; results have the type of the input."""

DTYPES: dict[np.dtype[Any], DType] = {np.dtype(d.label): d for d in DType if d is not DType.BFLOAT16}
"""NumPy's own dtypes; bfloat16 comes from ``ml_dtypes`` and is recognized by its name."""

REGISTERED = 2
"""Value of ``dtype.isbuiltin`` for dtypes that another package registered: ``ml_dtypes`` of JAX and TensorFlow."""


@final
class NumpyAdapter(TensorAdapter[NumpyValue]):
    """Arrays of any strides and byte order, and scalars."""

    def array(self, tensor: NumpyValue) -> Array:
        """See ``Adapter``; only for results of ``dense``, ``clone`` or ``empty``."""
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            if tensor.dtype.name != "bfloat16":
                raise UnsupportedError(
                    f"an array of {tensor.dtype} does not travel; these do: {', '.join(d.label for d in DType)}: "
                    "pass x.astype() of one of them, or objects to broadcast_object or allgather_object"
                )
            dtype = DType.BFLOAT16
        return Array(tensor.__array_interface__["data"][0], tensor.size, dtype, tensor)

    def shape(self, tensor: NumpyValue) -> tuple[int, ...]:
        """See ``Adapter``."""
        return np.shape(tensor)

    def dense(self, tensor: NumpyValue) -> NumpyValue:
        """See ``Adapter``; aligned, and in the byte order of this machine."""
        found = _array(tensor)
        if found.flags.c_contiguous and found.flags.aligned and found.dtype.isnative:
            return found
        return self.clone(found)

    def clone(self, tensor: NumpyValue) -> NumpyValue:
        """See ``Adapter``."""
        found = _array(tensor)
        return np.array(found, found.dtype.newbyteorder("="), copy=True, order="C", subok=False)

    def empty(self, shape: tuple[int, ...], like: NumpyValue) -> NumpyValue:
        """See ``Adapter``."""
        return np.empty(shape, like.dtype)

    def assign(self, target: NumpyValue, source: NumpyValue) -> None:
        """See ``Adapter``."""
        np.copyto(target, source, casting="equiv")

    def written(self, tensor: NumpyValue) -> None:
        """See ``Adapter``; nothing to do."""

    def is_tensor(self, leaf: object) -> TypeGuard[NumpyValue]:
        """See ``TensorAdapter``; not for masked arrays and other subclasses, which have more than their elements."""
        return type(leaf) in (np.ndarray, np.memmap) and _is_plain(leaf)

    def spec(self, tensor: NumpyValue) -> TensorSpec:
        """See ``TensorAdapter``; omits strides that are negative or no whole number of elements."""
        steps = [divmod(step, tensor.itemsize) for step in tensor.strides] if tensor.itemsize else []
        is_plain = tensor.flags.c_contiguous or any(step < 0 or rest for step, rest in steps)
        strides = None if is_plain else tuple(step for step, _ in steps)
        return TensorSpec(tensor.shape, _name(tensor.dtype), tensor.itemsize, strides)

    def make(self, spec: TensorSpec) -> NumpyValue:
        """See ``TensorAdapter``."""
        dtype = dtype_of(spec.dtype)
        if spec.strides is None:
            return np.empty(spec.shape, dtype)
        extent = 1 + sum((length - 1) * step for length, step in zip(spec.shape, spec.strides, strict=True))
        flat = np.empty(max(0, extent), dtype)
        return np.ndarray(spec.shape, dtype, flat, strides=_bytes(spec))

    def view(self, memory: Array, spec: TensorSpec) -> NumpyValue | None:
        """See ``TensorAdapter``; of host memory only."""
        if memory.device != "cpu":
            return None
        content: Any = (ctypes.c_ubyte * memory.nbytes).from_address(memory.address)
        content.owner = memory.owner  # the array keeps ``content`` alive
        return np.ndarray(spec.shape, dtype_of(spec.dtype), content, strides=_bytes(spec))

    def host_bytes(self, tensor: NumpyValue) -> Array:
        """See ``TensorAdapter``."""
        held = tensor if tensor.flags.carray else tensor.copy(order="C")  # ``carray`` implies writable
        return Array(held.ctypes.data, held.nbytes, DType.UINT8, held)

    def host_copy(self, tensor: NumpyValue) -> NumpyValue:
        """See ``TensorAdapter``; the order of the elements stays."""
        return np.array(tensor, order="K")


def writable(tensor: NumpyValue) -> NumpyValue:
    """Array for an in-place verb; raises ``UsageError`` if ``tensor`` cannot hold the result."""
    if not isinstance(tensor, np.ndarray):
        raise UsageError(
            f"a {type(tensor).__name__} cannot be written in place: call the function without the underscore at its "
            "end, which returns the result, or pass an array"
        )
    if not tensor.flags.writeable:
        raise UsageError(
            f"an array of shape {tensor.shape} is read-only, so it cannot be written in place: pass x.copy(), or call "
            "the function without the underscore at its end, which returns a new array"
        )
    return adapter.dense(tensor)


def restored(asked: NumpyValue, made: NumpyValue) -> NumpyValue:
    """Result ``made`` in the type of the input ``asked``: array, NumPy scalar or Python number."""
    if isinstance(asked, np.ndarray):
        return made
    return made[()] if isinstance(asked, np.generic) else made.item()


def unmasked(tensor: NumpyValue) -> NumpyValue:
    """``tensor`` itself; raises ``UnsupportedError`` for a masked array."""
    if isinstance(tensor, np.ma.MaskedArray):
        raise UnsupportedError("a masked array does not travel with its mask: pass x.filled(), and x.mask beside it")
    return tensor


def _array(tensor: NumpyValue) -> npt.NDArray[Any]:
    if isinstance(unmasked(tensor), np.ndarray):
        return tensor  # type: ignore[no-any-return]
    if isinstance(tensor, np.generic | bool | int | float | complex):
        return np.asarray(tensor)
    raise UsageError(
        f"a {type(tensor).__name__} is neither an array nor a number: pass np.asarray() of it, or take "
        "broadcast_object or allgather_object"
    )


def _name(dtype: np.dtype[Any]) -> str:
    """Name from which ``dtype_of`` makes the dtype again; ``dtype.name`` alone lacks the byte order."""
    return dtype.name if dtype in DTYPES or dtype.isbuiltin == REGISTERED else dtype.str


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a ``_name``; raises ``UnsupportedError`` if it needs a package that is not installed."""
    try:
        return np.dtype(name)
    except TypeError:
        try:
            found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        except (ImportError, AttributeError) as error:
            raise UnsupportedError(f"NumPy knows no {name} here: pip install ml_dtypes, which brings it") from error
        return found


def _is_plain(array: NumpyValue) -> bool:
    """True if elements are plain bytes: no objects and no records (most of ``ml_dtypes`` have the kind of records)."""
    is_record = array.dtype.kind == "V" and array.dtype.type.__module__ != "ml_dtypes"
    return not (array.dtype.hasobject or is_record)


def _bytes(spec: TensorSpec) -> tuple[int, ...] | None:
    return None if spec.strides is None else tuple(step * spec.itemsize for step in spec.strides)


adapter = NumpyAdapter()
verbs: Verbs[NumpyValue] = Verbs(adapter, writable, restored)
