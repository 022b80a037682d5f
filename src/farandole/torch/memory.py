"""Where gradients lie while they are reduced: side by side in engine memory, or where autograd put a large one."""

from __future__ import annotations

import ctypes
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import torch

from farandole.collective import Array
from farandole.engines.engine import Memory
from farandole.gradients.buckets import Bucket
from farandole.torch.adapter import TORCH_DTYPES
from farandole.torch.compression import Compression, CompressorLike


def as_bytes(memory: Memory) -> torch.Tensor:
    """The whole of ``memory`` as a uint8 tensor that keeps it alive."""
    content = (ctypes.c_ubyte * max(1, memory.nbytes)).from_address(memory.address)
    content.owner = memory.owner  # type: ignore[attr-defined] # a ctypes array made from an address owns nothing itself
    return torch.frombuffer(content, dtype=torch.uint8)


Published: TypeAlias = Callable[[], torch.Tensor | None]
"""A weak reference to a gradient that a run has left. A strong one would keep its memory, and its address alone may be
that of the next gradient, after ``zero_grad()`` has given the memory back."""

LONE_BYTES = 2**20
"""Gradients from this size on are reduced where they lie: copying them into engine memory costs more than it saves."""


class GradientBucket(ABC):
    """The gradients of some parameters, reduced as one ``array``: what ``fill`` or ``clear`` has left there.

    ``codes`` say per parameter what the members have: 0 no gradient, 1 a dense one, 1 + d a sparse one with d sparse
    dimensions.
    """

    array: Array

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor]) -> None:
        self.nbytes = bucket.nbytes
        self.slots = bucket.slots
        self.params = [params[slot.piece] for slot in bucket.slots]

    @abstractmethod
    def clear(self) -> None:
        """Contribute nothing."""

    @abstractmethod
    def fill(self) -> None:
        """Take the gradients; zeros where there is none."""

    @abstractmethod
    def weigh(self, weight: float) -> None:
        """Multiply what ``fill`` has taken."""

    @abstractmethod
    def publish(self, codes: Sequence[int]) -> None:
        """Make the reduced values the gradients; those of parameters that no member used stay as they are."""

    @abstractmethod
    def holds_any(self) -> bool:
        """True if some gradient is one that ``publish`` has made."""

    def _used(self, codes: Sequence[int]) -> Iterator[tuple[int, torch.Tensor, int]]:
        """Position, parameter and code of the parameters that some member used."""
        for i, (slot, param) in enumerate(zip(self.slots, self.params, strict=True)):
            if code := codes[slot.piece]:
                yield i, param, code


@final
class LoneGradient(GradientBucket):
    """One large gradient that is reduced where it lies."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor]) -> None:
        super().__init__(bucket, params)
        self._param = self.params[0]
        self._strides = _strides(self._param)
        self._dtype = bucket.dtype
        self._published: Published = _nothing

    def clear(self) -> None:
        """See ``GradientBucket``."""
        self._travel(torch.zeros_like(self._param))

    def fill(self) -> None:
        """See ``GradientBucket``."""
        grad = self._param.grad
        if grad is None:
            self.clear()
            return
        if grad.is_sparse:
            grad = grad.to_dense()
        if grad.stride() != self._strides or grad.is_conj() or grad.is_neg():
            grad = torch.empty_like(self._param).copy_(grad)
        self._travel(grad)

    def weigh(self, weight: float) -> None:
        """See ``GradientBucket``."""
        self.array.owner.mul_(weight)

    def publish(self, codes: Sequence[int]) -> None:
        """See ``GradientBucket``."""
        grad = self.array.owner
        del self.array  # it would keep the memory of the gradient
        for _, param, code in self._used(codes):
            param.grad = grad.to_sparse(code - 1) if code > 1 else grad
            self._published = weakref.ref(grad) if code == 1 else _nothing

    def holds_any(self) -> bool:
        """See ``GradientBucket``."""
        grad = self._param.grad
        return grad is not None and grad is self._published()

    def _travel(self, tensor: torch.Tensor) -> None:
        self.array = Array(tensor.data_ptr(), tensor.numel(), self._dtype, tensor)


class EngineBucket(GradientBucket):
    """Gradients side by side in engine memory, ``flat``."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], content: torch.Tensor, memory: Memory) -> None:
        super().__init__(bucket, params)
        self.array = memory.array(bucket.dtype, bucket.start, bucket.count)
        self.flat = content[bucket.start : bucket.start + bucket.nbytes].view(TORCH_DTYPES[bucket.dtype])

    def clear(self) -> None:
        """See ``GradientBucket``."""
        self.flat.zero_()

    def weigh(self, weight: float) -> None:
        """See ``GradientBucket``."""
        self.flat.mul_(weight)


@final
class DirectBucket(EngineBucket):
    """Gradients travel as they are, and are views of the bucket afterwards; one that still is is not copied."""

    def __init__(self, bucket: Bucket, params: Sequence[torch.Tensor], content: torch.Tensor, memory: Memory) -> None:
        super().__init__(bucket, params, content, memory)
        self.views = [
            self.flat[slot.offset : slot.offset + slot.count].as_strided(param.shape, _strides(param))
            for slot, param in zip(self.slots, self.params, strict=True)
        ]

    def fill(self) -> None:
        """See ``GradientBucket``."""
        targets, sources, absent = [], [], []
        for param, view in zip(self.params, self.views, strict=True):
            grad = param.grad
            if grad is None:
                absent.append(view)
            elif grad is not view:
                targets.append(view)
                sources.append(grad.to_dense() if grad.is_sparse else grad)
        if targets:
            torch._foreach_copy_(targets, sources)
        if absent:
            torch._foreach_zero_(absent)

    def publish(self, codes: Sequence[int]) -> None:
        """See ``GradientBucket``."""
        for i, param, code in self._used(codes):
            if code > 1:
                param.grad = self.views[i].to_sparse(code - 1)
            elif param.grad is not self.views[i]:
                param.grad = self.views[i]

    def holds_any(self) -> bool:
        """See ``GradientBucket``."""
        return any(param.grad is view for param, view in zip(self.params, self.views, strict=True))


@final
class CompressedBucket(EngineBucket):
    """Gradients are compressed into the bucket, and what comes back is decompressed into new ones."""

    def __init__(
        self,
        bucket: Bucket,
        params: Sequence[torch.Tensor],
        content: torch.Tensor,
        memory: Memory,
        compression: CompressorLike,
    ) -> None:
        super().__init__(bucket, params, content, memory)
        self._compression = compression
        self._contexts: list[Any] = [None] * len(self.slots)
        self._published: list[Published] = [_nothing] * len(self.slots)
        self._views = [
            self.flat[slot.offset : slot.offset + slot.count].view(travelling(param, compression).shape)
            for slot, param in zip(self.slots, self.params, strict=True)
        ]

    def fill(self) -> None:
        """See ``GradientBucket``."""
        for i, (param, view) in enumerate(zip(self.params, self._views, strict=True)):
            grad = torch.zeros_like(param) if param.grad is None else param.grad
            compressed, self._contexts[i] = self._compression.compress(grad.to_dense() if grad.is_sparse else grad)
            view.copy_(compressed)

    def publish(self, codes: Sequence[int]) -> None:
        """See ``GradientBucket``."""
        for i, param, code in self._used(codes):
            grad = self._compression.decompress(self._views[i], self._contexts[i])
            param.grad = grad.to_sparse(code - 1) if code > 1 else grad
            self._published[i] = _nothing if code > 1 else weakref.ref(grad)

    def holds_any(self) -> bool:
        """See ``GradientBucket``."""
        pairs = zip(self.params, self._published, strict=True)
        return any(param.grad is not None and param.grad is published() for param, published in pairs)


def _nothing() -> None:
    """No gradient."""


def _strides(param: torch.Tensor) -> tuple[int, ...]:
    """Those autograd would choose, so that optimizers meet gradients that lie as their parameters do."""
    return torch.empty_like(param, device="meta").stride()


def travelling(param: torch.Tensor, compression: CompressorLike) -> torch.Tensor:
    """A tensor of the shape and dtype in which the gradient of ``param`` travels."""
    if compression is Compression.none:
        return param
    return compression.compress(torch.zeros_like(param))[0]
