"""Adapter of a framework's tensors: the operations on them that the runtime needs, which never sees a tensor.

    class BufferAdapter(Adapter[bytearray]):
        def shape(self, tensor): return (len(tensor),)
        ...

An adapter has no state; its methods are called from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from farandole.collective import Array

T = TypeVar("T")


class Adapter(ABC, Generic[T]):
    """Tensors of one framework as memory that engines read and write."""

    @abstractmethod
    def array(self, tensor: T) -> Array:
        """The memory of a dense tensor; ``UnsupportedError`` for a dtype or device that nobody serves."""

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
