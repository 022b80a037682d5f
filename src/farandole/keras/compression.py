"""Compression of gradients for the transfer, on any backend.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=hvd.Compression.fp16)

To write your own compressor, see ``farandole.runtime.collectives.compression``.
"""

from __future__ import annotations

from typing import Any, final

import keras

from farandole.runtime.collectives.compression import CastCompressor, Compressor, CompressorLike, NoneCompressor

__all__ = ["Compressor", "CompressorLike", "KerasCompression", "NoneCompressor"]


class _KerasCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: Any) -> Any:
        """See ``CastCompressor``."""
        name = keras.backend.standardize_dtype(tensor.dtype)
        return name if "float" in name else None

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """See ``CastCompressor``."""
        return keras.ops.cast(tensor, dtype)


@final
class KerasHalfCompressor(_KerasCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = "float16"


@final
class KerasBrainCompressor(_KerasCast):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = "bfloat16"


@final
class KerasCompression:
    """Farandole's compressors.

    >>> hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = KerasHalfCompressor
    bf16 = KerasBrainCompressor
