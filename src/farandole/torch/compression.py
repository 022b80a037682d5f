"""Compression of gradients for the transfer.

    optimizer = DistributedOptimizer(optimizer, compression=Compression.fp16)

To write your own compressor, define a class with the two static methods of ``Compressor``. The result of ``compress``
is reduced, so it must have the same shape and dtype on every rank.
"""

from __future__ import annotations

from typing import final

import torch

from farandole.runtime.collectives.compression import CastCompressor, Compressor, CompressorLike, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "CompressorLike", "FP16Compressor", "NoneCompressor"]


class _TorchCast(CastCompressor):
    @staticmethod
    def floating_dtype(tensor: torch.Tensor) -> torch.dtype | None:
        """See ``CastCompressor``."""
        return tensor.dtype if tensor.dtype.is_floating_point else None

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """See ``CastCompressor``."""
        return tensor.to(dtype)


@final
class FP16Compressor(_TorchCast):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = torch.float16


@final
class BF16Compressor(_TorchCast):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


@final
class Compression:
    """Farandole's compressors.

    >>> mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
