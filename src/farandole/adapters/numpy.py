"""NumPy's arrays as memory for the runtime, and scalars as arrays without dimensions.

verbs.allreduce([np.ones(3), 2.5], "pair", Reduction(), global_process_set).run()
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.collective import Array, DType
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.collectives.adapter import Adapter
from farandole.runtime.collectives.verbs import Verbs

__all__ = ["DTYPES", "NumpyAdapter", "NumpyValue", "adapter", "verbs"]

NumpyValue: TypeAlias = Any
"""An ``np.ndarray`` of a dtype that travels, a NumPy scalar, or a Python number; each comes back as what it was."""

DTYPES: dict[np.dtype[Any], DType] = {np.dtype(d.label): d for d in DType if d is not DType.BFLOAT16}
"""NumPy's own; bfloat16 is the one of ``ml_dtypes``, which is known by its name."""


@final
class NumpyAdapter(Adapter[NumpyValue]):
    """Arrays of any strides and byte order, and scalars."""

    def array(self, tensor: NumpyValue) -> Array:
        """See ``Adapter``; of what ``dense``, ``clone`` or ``empty`` has returned."""
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
        """See ``Adapter``; nobody needs to know."""


def writable(tensor: NumpyValue) -> NumpyValue:
    """The array that an in-place verb works on; raises ``UsageError`` if ``tensor`` cannot take the result."""
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
    """The result ``made`` for ``asked``: an array for an array, else a scalar of NumPy or Python, as that was."""
    if isinstance(asked, np.ndarray):
        return made
    return made[()] if isinstance(asked, np.generic) else made.item()


def _array(tensor: NumpyValue) -> npt.NDArray[Any]:
    if isinstance(tensor, np.ma.MaskedArray):
        raise UnsupportedError("a masked array does not travel with its mask: pass x.filled(), and x.mask beside it")
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, np.generic | bool | int | float | complex):
        return np.asarray(tensor)
    raise UsageError(
        f"a {type(tensor).__name__} is neither an array nor a number: pass np.asarray() of it, or take "
        "broadcast_object or allgather_object"
    )


adapter = NumpyAdapter()
verbs: Verbs[NumpyValue] = Verbs(adapter, writable, restored)
