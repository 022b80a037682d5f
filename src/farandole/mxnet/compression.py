"""Compression of arrays for the transfer.

    mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)

To write your own compressor, see ``farandole.runtime.collectives.compression``.
"""

from __future__ import annotations

from typing import Any, final

import mxnet as mx
import numpy as np

from farandole.adapters.mxnet import BFLOAT16, NDArray, adapter, dtype_of
from farandole.runtime.collectives.compression import CastCompressor, NoneCompressor


def cast(tensor: NDArray, dtype: Any) -> NDArray:
    """Copy of an array in another dtype, made through ``mx.nd``, because ``mx.np`` has no bfloat16."""
    with mx.util.np_shape(True):
        made = tensor.as_nd_ndarray().astype(dtype)
    return made.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else made


class _NDArrayCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: NDArray) -> Any:
        """See ``CastCompressor``."""
        return tensor.dtype if dtype_of(adapter.dense(tensor)).is_floating else None

    @staticmethod
    def cast(tensor: NDArray, dtype: Any) -> NDArray:
        """See ``CastCompressor``."""
        return cast(tensor, dtype)


@final
class NDArrayFloat16Compressor(_NDArrayCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = np.float16


@final
class NDArrayBfloat16Compressor(_NDArrayCast):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = BFLOAT16


@final
class NDArrayCompression:
    """Farandole's compressors.

    >>> mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = NDArrayFloat16Compressor
    bf16 = NDArrayBfloat16Compressor


Compression = NDArrayCompression
