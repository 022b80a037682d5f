"""Smaller tensors on the wire: the interface of a compressor, and the part that all frameworks share.

    class HalfCompressor(CastCompressor):
        wire_dtype = np.float16
        ...

A compressor of your own is a class with the two static methods of ``Compressor``; what ``compress`` returns is reduced,
so it must have the same shape and dtype on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias, final


class Compressor(ABC):
    """Turns a tensor into what travels, and what came back into a tensor."""

    @staticmethod
    @abstractmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor that travels, and a context that ``decompress`` will be given."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """A tensor as it was before ``compress``, from what came back."""


@final
class NoneCompressor(Compressor):
    """Travels as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """See ``Compressor``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:  # noqa: ARG004 (the interface)
        """See ``Compressor``."""
        return tensor


class CastCompressor(Compressor):
    """Floating tensors travel as ``wire_dtype``; sums are accumulated in float32 on the way.

    A framework says what a floating dtype is, and how to cast.
    """

    wire_dtype: ClassVar[Any]

    @staticmethod
    @abstractmethod
    def floating_dtype(tensor: Any) -> Any:
        """The dtype of a floating tensor; ``None`` for all others, which travel as they are."""

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
