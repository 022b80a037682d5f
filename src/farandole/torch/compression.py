"""Smaller gradients on the wire.

    optimizer = DistributedOptimizer(optimizer, compression=Compression.fp16)

A compressor of your own is a class with these two static methods; what ``compress`` returns is reduced, so it must have
the same shape and dtype on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias, final

import torch


class Compressor(ABC):
    """Turns a tensor into what travels, and what came back into a tensor."""

    @staticmethod
    @abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor that travels, and a context that ``decompress`` will be given."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """A tensor as it was before ``compress``, from what came back."""


@final
class NoneCompressor(Compressor):
    """Travels as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See ``Compressor``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ARG004 (the interface)
        """See ``Compressor``."""
        return tensor


class CastCompressor(Compressor):
    """Floating tensors travel as ``wire_dtype``; sums are accumulated in float32 on the way."""

    wire_dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """See ``Compressor``; the context is the dtype to return to."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(cls.wire_dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See ``Compressor``."""
        return tensor.to(ctx)


@final
class FP16Compressor(CastCompressor):
    """float16: 11 bits of precision, overflows above 65504."""

    wire_dtype = torch.float16


@final
class BF16Compressor(CastCompressor):
    """bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


CompressorLike: TypeAlias = type[Compressor] | Compressor


@final
class Compression:
    """The compressors that come with Farandole.

    >>> mean = hvd.allreduce(gradient, compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
