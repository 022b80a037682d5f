"""Compression of tensors for the transfer.

    mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)

To write your own compressor, see ``farandole.runtime.collectives.compression``.
"""

from __future__ import annotations

from typing import Any, final

import tensorflow as tf

from farandole.adapters.tensorflow import AnyTensor
from farandole.runtime.collectives.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _TensorFlowCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: AnyTensor) -> Any:
        """See ``CastCompressor``."""
        dtype = tf.as_dtype(tensor.dtype)
        return dtype if dtype.is_floating else None

    @staticmethod
    def cast(tensor: AnyTensor, dtype: Any) -> AnyTensor:
        """See ``CastCompressor``."""
        return tf.cast(tensor, dtype)


@final
class TensorFlowHalfCompressor(_TensorFlowCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = tf.float16


@final
class TensorFlowBrainCompressor(_TensorFlowCast):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = tf.bfloat16


@final
class TensorFlowCompression:
    """Farandole's compressors.

    >>> mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = TensorFlowHalfCompressor
    bf16 = TensorFlowBrainCompressor


Compression = TensorFlowCompression
FP16Compressor, BF16Compressor = TensorFlowHalfCompressor, TensorFlowBrainCompressor
