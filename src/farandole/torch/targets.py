"""Targets of reduced gradients: the gradients they come from, if these lie apart, or fresh memory.

    gradients = [param.grad for param in params]
    Targets(specs).of(gradients)                # per gradient: itself, or None

Autograd makes gradients that lie apart. Users also make one tensor the gradient of two parameters, expand a scalar,
cut one buffer into pieces, or keep a gradient with its graph: written in place, one result would overwrite another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import attrgetter, is_
from typing import NamedTuple, final

import torch

from farandole.gradients.tensors import Gradients

_MOST_KNOWN = 16

_strides, _numel, _address = torch.Tensor.stride, torch.Tensor.numel, torch.Tensor.data_ptr
_type = attrgetter("dtype", "requires_grad")


class GradientSpec(NamedTuple):
    """The order and type of a gradient's elements while it is reduced, the same on all members."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(param: torch.Tensor) -> GradientSpec:
        """Spec of a gradient as autograd would make it, so that it is copied straight in most cases."""
        return GradientSpec(param.shape, torch.empty_like(param, device="meta").stride(), param.dtype, param.device)

    def empty(self) -> torch.Tensor:
        """Memory for one such gradient."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


@final
class Targets:
    """Finds the targets of gradients of the shapes in ``specs``."""

    def __init__(self, specs: Sequence[GradientSpec]) -> None:
        self._strides = [spec.strides for spec in specs]
        self._types = [(spec.dtype, False) for spec in specs]
        self._numels = [spec.shape.numel() for spec in specs]
        self._extents = [spec.shape.numel() * spec.dtype.itemsize for spec in specs]
        self._apart: set[tuple[int, ...]] = set()  # addresses that were found to lie apart; an allocator has a few

    def are_ordinary(self, gradients: Gradients[torch.Tensor]) -> bool:
        """True if all are there as autograd makes them: ``specs`` hold, and each may be written over.

        Said of all at once, as this is asked in every step.
        """
        there: Sequence[torch.Tensor] = gradients  # type: ignore[assignment] # or else there is a TypeError
        try:
            if list(map(_strides, there)) != self._strides or list(map(_type, there)) != self._types:
                return False
            if list(map(_numel, there)) != self._numels:
                return False
            addresses = tuple(map(_address, there))
        except TypeError:
            return False
        if addresses not in self._apart:
            if not _lie_apart(sorted(zip(addresses, self._extents, strict=True))):
                return False
            if len(self._apart) == _MOST_KNOWN:
                self._apart.clear()
            self._apart.add(addresses)
        return True

    def of(self, gradients: Gradients[torch.Tensor]) -> Gradients[torch.Tensor]:
        """Per gradient: itself if it may be written over, or ``None``."""
        return gradients if self.are_ordinary(gradients) else _one_by_one(gradients)


def overlap(gradients: Gradients[torch.Tensor]) -> bool:
    """True if some memory belongs to two of them, or to two elements of one."""
    there = [gradient for gradient in gradients if gradient is not None and not gradient.is_sparse]
    return not _lie_apart(sorted(map(_span, there))) or any(map(_folds, there))


@final
class HandedOut:
    """The gradients that a run has left, which another run must not sum up again.

    Known by weak references: strong ones would keep their memory, and an address alone may be that of the next
    gradient, after ``zero_grad()`` has given the memory back.
    """

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[torch.Tensor], int] | None] = []

    def note(self, params: Iterable[torch.Tensor]) -> None:
        """A run has left the gradients of ``params``."""
        self._known = [None if (g := p.grad) is None else (weakref.ref(g), _version(g)) for p in params]

    def any_of(self, params: Sequence[torch.Tensor]) -> bool:
        """True if one is there still, whatever was added to it."""
        pairs = zip(params, self._known, strict=False)
        return any(known is not None and p.grad is not None and p.grad is known[0]() for p, known in pairs)

    def without_stale(
        self, params: Sequence[torch.Tensor], gradients: Gradients[torch.Tensor]
    ) -> Gradients[torch.Tensor]:
        """The gradients but for those of parameters that are frozen now, where they are still what the run has left.

        The same object if there is none.
        """
        if len(self._known) != len(params) or all(param.requires_grad for param in params):
            return gradients
        triples = zip(params, gradients, self._known, strict=True)
        kept = [None if not p.requires_grad and _is_untouched(g, known) else g for p, g, known in triples]
        return gradients if all(map(is_, kept, gradients)) else kept


def _is_untouched(gradient: torch.Tensor | None, known: tuple[weakref.ref[torch.Tensor], int] | None) -> bool:
    is_known = gradient is not None and known is not None and known[0]() is gradient
    return is_known and known is not None and gradient is not None and known[1] == _version(gradient)


def _version(gradient: torch.Tensor) -> int:
    return -1 if gradient.is_inference() else gradient._version


def _one_by_one(gradients: Gradients[torch.Tensor]) -> Gradients[torch.Tensor]:
    found = [None if gradient is None or not _is_writable(gradient) else gradient for gradient in gradients]
    end = 0
    for first, nbytes, i in sorted((*_span(target), i) for i, target in enumerate(found) if target is not None):
        if first < end:
            found[i] = None
        end = max(end, first + nbytes)
    return found


def _is_writable(gradient: torch.Tensor) -> bool:
    is_plain = not gradient.is_sparse and not gradient.requires_grad and not gradient.is_inference()
    return is_plain and not _folds(gradient)


def _span(gradient: torch.Tensor) -> tuple[int, int]:
    """Address of its memory, and the number of bytes that it extends over."""
    if not gradient.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(gradient.shape, gradient.stride(), strict=True))
    return gradient.data_ptr(), (last + 1) * gradient.element_size()


def _folds(gradient: torch.Tensor) -> bool:
    """True if two elements may share memory; also for a few gradients where none do."""
    reach = 0
    for stride, size in sorted(zip(gradient.stride(), gradient.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _lie_apart(spans: Iterable[tuple[int, int]]) -> bool:
    end = 0
    for first, nbytes in spans:
        if first < end:
            return False
        end = first + nbytes
    return True
