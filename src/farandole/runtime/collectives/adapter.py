"""Adapters of a framework's tensors: operations for framework-neutral code, which never accesses a tensor itself.

    class BufferAdapter(Adapter[bytearray]):                    # memory for collectives
        def shape(self, tensor): return (len(tensor),)
        ...

    class NumpyAdapter(TensorAdapter[np.ndarray]):              # tensors of a framework: state and checkpoints, too
        def spec(self, tensor): return TensorSpec(tensor.shape, tensor.dtype.name, tensor.itemsize)
        ...

An adapter has no state; its methods are called from any thread.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeGuard, TypeVar, final

from farandole.collective import Array

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Description of a tensor that every process can read, with or without the framework.

    >>> TensorSpec((2, 3), "float32", itemsize=4).nbytes
    24

    ``dtype``: the framework's name of the element type, equal to ``DType.label`` if engines support the type.
    ``strides`` count elements; ``None``: row-major order without gaps.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    strides: tuple[int, ...] | None = None
    device: str = "cpu"

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * self.itemsize

    @property
    def portable(self) -> TensorSpec:
        """Spec of the same values in row-major order in host memory: the same on all ranks, for all devices."""
        return TensorSpec(self.shape, self.dtype, self.itemsize)

    @property
    def packed(self) -> TensorSpec:
        """Spec of the same values in host memory, in their memory order; in row-major order if there are gaps."""
        strides = self.strides
        if strides is not None:
            step = 1
            for stride, length in sorted(zip(strides, self.shape, strict=True)):
                if length > 1 and stride != step:
                    return self.portable
                step *= length
        return TensorSpec(self.shape, self.dtype, self.itemsize, strides)


class Adapter(ABC, Generic[T]):
    """Tensors of one framework as memory that engines read and write."""

    @abstractmethod
    def array(self, tensor: T) -> Array:
        """The memory of a dense tensor; ``UnsupportedError`` for a dtype or device that no engine supports."""

    @abstractmethod
    def shape(self, tensor: T) -> tuple[int, ...]:
        """Lengths of the tensor's dimensions."""

    @abstractmethod
    def dense(self, tensor: T) -> T:
        """``tensor`` itself if its elements lie in row-major order without gaps, else a copy that does."""

    @abstractmethod
    def clone(self, tensor: T) -> T:
        """A dense copy."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], like: T) -> T:
        """A new dense tensor with the dtype and device of ``like``; its values are not defined."""

    @abstractmethod
    def assign(self, target: T, source: T) -> None:
        """Copy the values of ``source`` into ``target``."""

    @abstractmethod
    def written(self, tensor: T) -> None:
        """Tell the framework that the memory of ``tensor`` has been written behind its back."""


class TensorAdapter(Adapter[T]):
    """Tensors of one framework that are saved, sent and written to files, of any dtype and on any device."""

    @abstractmethod
    def is_tensor(self, leaf: object) -> TypeGuard[T]:
        """True for a tensor of this framework, whose memory holds values and no references to objects."""

    @abstractmethod
    def spec(self, tensor: T) -> TensorSpec:
        """Description of ``tensor``."""

    @abstractmethod
    def make(self, spec: TensorSpec) -> T:
        """A new tensor that fits ``spec``; its values are not defined."""

    @abstractmethod
    def view(self, memory: Array, spec: TensorSpec) -> T | None:
        """A tensor with this ``spec`` whose elements are those of ``memory``; ``None`` if there can be none.

        It keeps ``memory.owner`` alive. Frameworks whose tensors cannot change, or cannot alias memory, have none.
        """

    @abstractmethod
    def host_bytes(self, tensor: T) -> Array:
        """The values in row-major order as bytes of host memory, whose ``owner`` is ``tensor`` itself, or a copy.

        The owner is ``tensor`` if its values have this layout already. After a write to the bytes, call ``assign`` if
        the owner is a copy, else ``written``.
        """

    def require_kept(self, tensor: T) -> None:
        """Raise ``UsageError`` for a tensor that ``host_copy`` could not copy."""

    @abstractmethod
    def host_copy(self, tensor: T) -> T:
        """A copy of the values in host memory of its own, without other elements of memory that ``tensor`` views."""
