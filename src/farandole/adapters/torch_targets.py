"""Targets of reduced gradients of PyTorch: the gradients they come from, if these lie apart, or fresh memory.

    gradients = [param.grad for param in params]
    Targets(specs).of(gradients)                # per gradient: itself, or None

Autograd makes gradients that lie apart. Users also make one tensor the gradient of two parameters, expand a scalar,
cut one buffer into pieces, or keep a gradient with its graph: written in place, one result would overwrite another.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, attrgetter, le
from typing import NamedTuple, final

import torch

from farandole.adapters.torch import DTYPES
from farandole.gradients.agreement import ANY, code
from farandole.gradients.tensors import Gradients

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

    def sparse(self, gradient: torch.Tensor | None, sparse_dims: int) -> torch.Tensor:
        """``gradient`` as a sparse tensor; one without values if there is none."""
        if gradient is None:
            indices = torch.empty(sparse_dims, 0, dtype=torch.int64, device=self.device)
            values = torch.empty(0, *self.shape[sparse_dims:], dtype=self.dtype, device=self.device)
            return torch.sparse_coo_tensor(indices, values, self.shape, is_coalesced=True, check_invariants=False)
        return gradient if gradient.is_sparse else gradient.to_sparse(sparse_dims)


@final
class Targets:
    """Finds the targets of gradients of the shapes in ``specs``."""

    def __init__(self, specs: Sequence[GradientSpec]) -> None:
        self._strides = [spec.strides for spec in specs]
        self._types = [(spec.dtype, False) for spec in specs]
        self._numels = [spec.shape.numel() for spec in specs]
        self._extents = [spec.shape.numel() * spec.dtype.itemsize for spec in specs]

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
            addresses = list(map(_address, there))
        except TypeError:
            return False
        return _lie_apart(addresses, self._extents)  # not remembered: an allocator has ever other small ones

    def of(self, gradients: Gradients[torch.Tensor]) -> Gradients[torch.Tensor]:
        """Per gradient: itself if it may be written over, or ``None``."""
        return gradients if self.are_ordinary(gradients) else _one_by_one(gradients)


def dtype_of(param: torch.Tensor) -> torch.dtype | None:
    """The dtype that a gradient of ``param`` must have; ``None`` for any."""
    dtype: torch.dtype | None = getattr(param, "grad_dtype", param.dtype)  # PyTorch 2.10 lets it be another one
    return dtype


def code_of(param: torch.Tensor, gradient: torch.Tensor | None) -> int:
    """The code of one gradient; where there is none, it says which dtype one must have."""
    if gradient is None:
        dtype = dtype_of(param)
        return ANY if dtype is None else code(DTYPES.get(dtype), 0)
    return code(DTYPES.get(gradient.dtype), 1 + gradient.sparse_dim() if gradient.is_sparse else 1)


def overlap(gradients: Gradients[torch.Tensor]) -> bool:
    """True if some memory belongs to two of them, or to two elements of one."""
    there = [gradient for gradient in gradients if gradient is not None and not gradient.is_sparse]
    addresses, extents = zip(*map(_span, there), strict=True) if there else ((), ())
    return not _lie_apart(addresses, extents) or any(map(_folds, there))


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


def _lie_apart(addresses: Sequence[int], extents: Sequence[int]) -> bool:
    """True if no byte is in two: each begins when as many have ended as have begun before it."""
    return all(map(le, sorted(map(add, addresses, extents)), sorted(addresses)[1:]))


def new_gradient(param: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A gradient with this ``value``, laid out as autograd lays one out now.

    A step rounds by the way in which the elements lie: ranks with other strides would come to other bits.
    """
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """The same values with an element for each."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def is_like(gradient: torch.Tensor | None, spec: GradientSpec) -> bool:
    """True if the elements of ``gradient`` lie in memory as ``spec`` says."""
    if gradient is None:
        return False
    is_same = gradient.dtype is spec.dtype and gradient.shape == spec.shape and gradient.stride() == spec.strides
    return is_same and not gradient.is_conj() and not gradient.is_neg()
