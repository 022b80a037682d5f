"""Smaller tensors on the wire: the interface of a compressor, and the part that all frameworks share.

    class HalfCompressor(CastCompressor):
        wire_dtype = np.float16
        ...

A compressor of your own is a class with the two static methods of ``Compressor``; the result of ``compress`` is
reduced, so it must have the same shape and dtype on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias, final


class Compressor(ABC):
    """Conversion of a tensor to the tensor on the wire, and of the result back."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor for the wire, and a context for ``decompress``."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Convert a result to the form of the tensor before ``compress``."""


@final
class NoneCompressor(Compressor):
    """No compression: tensors are sent as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """See ``Compressor``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 (the interface)
        """See ``Compressor``."""
        return tensor


class CastCompressor(Compressor):
    """Compressor that sends floating tensors as ``wire_dtype``; engines accumulate sums in float32.

    A framework defines what a floating dtype is, and how to cast.
    """

    wire_dtype: ClassVar[Any]

    @staticmethod
    @abstractmethod
    def floating_dtype(tensor: Any) -> Any:
        """The dtype of a floating tensor; ``None`` for all others, which are sent as they are."""

    @staticmethod
    @abstractmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """The tensor with another dtype."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """See ``Compressor``; the context is the dtype to return to."""
        dtype = cls.floating_dtype(tensor)
        return (tensor, None) if dtype is None else (cls.cast(tensor, cls.wire_dtype), dtype)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """See ``Compressor``."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


CompressorLike: TypeAlias = type[Compressor] | Compressor
