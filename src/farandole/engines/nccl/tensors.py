"""Arrays as PyTorch's tensors, wherever they are, and the arithmetic of reductions on them.

    total = combine(first, second, ReduceOp.SUM)
    result = finish(total, ReduceOp.AVERAGE, size=2, postscale=1.0)

For tensors that the native core cannot reach. Numbers narrower than 32 bits are reduced in 32 bits and rounded once.
"""

from __future__ import annotations

import ctypes

import torch

from farandole.collective import Array, ReduceOp

_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.uint16: torch.int32,
    torch.int16: torch.int32,
}


def tensor(array: Array) -> torch.Tensor:
    """The elements of an array, flat; on the host without a copy of ``owner``'s shape."""
    dtype: torch.dtype = getattr(torch, array.dtype.label)
    if array.device != "cpu":
        owner: torch.Tensor = array.owner
        return owner.detach().view(-1)
    if not array.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.address), dtype=dtype)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes, which every library moves."""
    return values.view(torch.uint8) if values.numel() else values.new_empty(0, dtype=torch.uint8)


def widen(values: torch.Tensor, prescale: float) -> torch.Tensor:
    """A contribution as it is reduced."""
    return scale(values.to(_WIDE.get(values.dtype, values.dtype)), prescale)


def scale(values: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply; integers in float64, truncating; bool is left alone."""
    if factor == 1.0 or values.dtype is torch.bool:
        return values
    if values.is_floating_point() or values.is_complex():
        return values * factor
    return (values.double() * factor).trunc().to(values.dtype)


def combine(total: torch.Tensor, other: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """One step of a reduction; AVERAGE sums (bool: *and*), without dividing."""
    if total.dtype is torch.bool:
        return total | other if op in (ReduceOp.SUM, ReduceOp.MAX) else total & other
    if op is ReduceOp.MIN:
        return torch.minimum(total, other)
    if op is ReduceOp.MAX:
        return torch.maximum(total, other)
    return total * other if op is ReduceOp.PRODUCT else total + other


def finish(total: torch.Tensor, op: ReduceOp, size: int, postscale: float) -> torch.Tensor:
    """The result of a reduction over ``size`` contributions; integers are divided truncating toward zero."""
    if op is ReduceOp.AVERAGE and total.dtype is not torch.bool:
        exact = total.is_floating_point() or total.is_complex()
        total = total / size if exact else torch.div(total, size, rounding_mode="trunc")
    return scale(total, postscale)
