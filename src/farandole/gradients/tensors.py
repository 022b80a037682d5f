"""Operations on the tensors of one framework that the reduction of gradients needs.

    class ListTensors(Tensors[list[float]]):
        def zeros_like(self, tensor): return [0.0] * len(tensor)
        ...

Like its ``TensorAdapter``, a ``Tensors`` object has no state, and any thread may call its methods. Parameters are
opaque here: objects of the framework, distinguished by identity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeAlias, TypeVar

from farandole.collective import Array
from farandole.errors import UnsupportedError
from farandole.native import core
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec

T = TypeVar("T")

Param: TypeAlias = Any
"""A parameter object of a framework."""

Gradients: TypeAlias = Sequence[T | None]
"""One gradient for each parameter; ``None`` if a parameter has no gradient."""


class Tensors(ABC, Generic[T]):
    """Arithmetic, memory and digests of the tensors of one framework."""

    adapter: TensorAdapter[T]

    @abstractmethod
    def zeros_like(self, tensor: T) -> T:
        """Zeros of the same shape, dtype and layout; also for a parameter."""

    @abstractmethod
    def clone(self, tensor: T) -> T:
        """A copy with the same layout."""

    @abstractmethod
    def part(self, tensor: T, begin: int, end: int) -> T:
        """Elements ``begin`` to ``end - 1`` in row-major order; a view if the tensor's memory has that order."""

    @abstractmethod
    def copy(self, targets: Sequence[T], sources: Sequence[T]) -> None:
        """Copy the values of each source into its target."""

    @abstractmethod
    def add(self, targets: Sequence[T], others: Sequence[T]) -> None:
        """Add each of ``others`` to its target, in place."""

    @abstractmethod
    def scale(self, tensors: Sequence[T], factor: float) -> None:
        """Multiply in place."""

    @abstractmethod
    def fill(self, tensor: T, value: int) -> None:
        """Set every element to ``value``."""

    @abstractmethod
    def sample(self, tensor: T, turn: int) -> T:
        """Parts spread over a large tensor, different ones in each ``turn``; a small tensor whole."""

    @abstractmethod
    def processor(self, param: Param) -> str:
        """Description of the processor of ``param``; equal on two ranks if their arithmetic rounds alike."""

    def digests(self, tensors: Gradients[T]) -> list[int]:
        """Digests of the values, in logical order; ``None`` and every sparse tensor share one constant digest.

        Parameters may be among them.
        """
        found = [None if tensor is None else self.adapter.host_bytes(tensor) for tensor in tensors]
        return core.digest(
            [0 if values is None else values.address for values in found],
            [0 if values is None else values.nbytes for values in found],
        )

    def on_memory(self, array: Array, like: T | None = None) -> T:
        """A tensor on the memory of ``array``: flat, or of the shape of ``like``; keeps the memory alive."""
        shape = (array.count,) if like is None else self.adapter.shape(like)
        found = self.adapter.view(array, TensorSpec(shape, array.dtype.label, array.dtype.itemsize))
        if found is None:
            raise UnsupportedError(
                f"no tensor can lie in memory of {array.device}, as the reduction of gradients needs"
            )
        return found

    def gradient(self, param: Param) -> T | None:
        """Gradient of ``param``, in frameworks whose parameters hold their gradients."""
        return None

    def set_gradient(self, param: Param, gradient: T | None) -> None:
        """Set the gradient of ``param``, in frameworks whose parameters hold their gradients."""

    def version(self, gradient: T) -> int:
        """Version number that changes when the values are written, in frameworks that count writes."""
        return 0

    def is_part(self, gradient: T) -> bool:
        """True if ``gradient`` is part of a larger buffer, with which it may share its version."""
        return False

    def is_trained(self, param: Param) -> bool:
        """False for a parameter that is frozen."""
        return True

    def untracked(self) -> AbstractContextManager[Any]:
        """Context in which the framework records no autograd history; applies to the current thread."""
        return nullcontext()
