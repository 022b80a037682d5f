"""Targets of reduced PyTorch gradients: the gradients themselves if they share no memory, or new memory.

    gradients = [param.grad for param in params]
    Targets(specs).of(gradients)                # per gradient: itself, or None

Gradients from autograd share no memory. But users make one tensor the gradient of two parameters, expand a scalar,
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
    """Memory layout and dtype of a gradient during the reduction, the same on all members."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(param: torch.Tensor) -> GradientSpec:
        """Spec of a gradient as autograd makes it, so that most copies keep the order of elements."""
        return GradientSpec(param.shape, torch.empty_like(param, device="meta").stride(), param.dtype, param.device)

    def empty(self) -> torch.Tensor:
        """New, uninitialized gradient of this spec."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def sparse(self, gradient: torch.Tensor | None, sparse_dims: int) -> torch.Tensor:
        """``gradient`` as a sparse tensor; without values if ``gradient`` is ``None``."""
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
        """True if all gradients exist, match ``specs``, and may each be overwritten.

        Checks all gradients at once, for speed: every step calls this.
        """
        there: Sequence[torch.Tensor] = gradients  # type: ignore[assignment] # ``None`` raises TypeError below
        try:
            if list(map(_strides, there)) != self._strides or list(map(_type, there)) != self._types:
                return False
            if list(map(_numel, there)) != self._numels:
                return False
            addresses = list(map(_address, there))
        except TypeError:
            return False
        return _lie_apart(addresses, self._extents)  # not cached: small gradients get new addresses in each step

    def of(self, gradients: Gradients[torch.Tensor]) -> Gradients[torch.Tensor]:
        """For each gradient, the gradient itself if it may be overwritten, else ``None``."""
        return gradients if self.are_ordinary(gradients) else _one_by_one(gradients)


def dtype_of(param: torch.Tensor) -> torch.dtype | None:
    """Required dtype of a gradient of ``param``; ``None`` if any dtype is allowed."""
    dtype: torch.dtype | None = getattr(param, "grad_dtype", param.dtype)  # ``grad_dtype`` since PyTorch 2.10
    return dtype


def code_of(param: torch.Tensor, gradient: torch.Tensor | None) -> int:
    """Code of one gradient (see ``agreement.code``); for ``None``, with the dtype that a gradient would have."""
    if gradient is None:
        dtype = dtype_of(param)
        return ANY if dtype is None else code(DTYPES.get(dtype), 0)
    return code(DTYPES.get(gradient.dtype), 1 + gradient.sparse_dim() if gradient.is_sparse else 1)


def overlap(gradients: Gradients[torch.Tensor]) -> bool:
    """True if two gradients share memory, or two elements of one gradient."""
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
    """Address of the gradient's memory, and its extent in bytes."""
    if not gradient.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(gradient.shape, gradient.stride(), strict=True))
    return gradient.data_ptr(), (last + 1) * gradient.element_size()


def _folds(gradient: torch.Tensor) -> bool:
    """True if two elements may share memory; true also for some rare layouts without sharing."""
    reach = 0
    for stride, size in sorted(zip(gradient.stride(), gradient.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _lie_apart(addresses: Sequence[int], extents: Sequence[int]) -> bool:
    """True if no two extents overlap: the n-th smallest end is at most the (n+1)-th smallest begin."""
    return all(map(le, sorted(map(add, addresses, extents)), sorted(addresses)[1:]))


def new_gradient(param: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Gradient with this ``value``, in the memory layout that autograd would choose now.

    The rounding of a step depends on the memory layout: ranks with different strides would get different bits.
    """
    return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a dense tensor."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def is_like(gradient: torch.Tensor | None, spec: GradientSpec) -> bool:
    """True if dtype, shape and memory layout of ``gradient`` match ``spec``."""
    if gradient is None:
        return False
    is_same = gradient.dtype is spec.dtype and gradient.shape == spec.shape and gradient.stride() == spec.strides
    return is_same and not gradient.is_conj() and not gradient.is_neg()
