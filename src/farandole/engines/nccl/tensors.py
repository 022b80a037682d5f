"""Arrays as PyTorch tensors on any device, and the arithmetic of reductions on them.

    total = combine(first, second, ReduceOp.SUM)
    result = finish(total, ReduceOp.AVERAGE, size=2, postscale=1.0)

For tensors that the native core cannot access. Numbers narrower than 32 bits are reduced in 32 bits and rounded once.
Integer reductions that need more than 64 bits are copied to the host for the native core (``exactly``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.errors import UnsupportedError
from farandole.native import core

_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.uint16: torch.int32,
    torch.int16: torch.int32,
}


def _by_parts(do: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
    """Apply ``do`` to real and imaginary parts: PyTorch's complex arithmetic makes NaN of infinities, even in sums."""
    if not values[0].is_complex():
        return do(*values)
    return torch.view_as_complex(do(*map(torch.view_as_real, values)))


def _add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _by_parts(torch.add, left, right)


_OF_NUMBERS: dict[ReduceOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: _add,
    ReduceOp.AVERAGE: _add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul,
}
_OF_BOOLEANS: dict[ReduceOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.bitwise_or,
    ReduceOp.AVERAGE: torch.bitwise_and,
    ReduceOp.MIN: torch.bitwise_and,
    ReduceOp.MAX: torch.bitwise_or,
    ReduceOp.PRODUCT: torch.bitwise_and,
}


def tensor(array: Array) -> torch.Tensor:
    """Elements of an array as a flat tensor, without a copy."""
    dtype: torch.dtype = getattr(torch, array.dtype.label)
    if array.device != "cpu":
        owner: torch.Tensor = array.owner
        return owner.detach().view(-1)
    if not array.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_uint8 * array.nbytes).from_address(array.address), dtype=dtype)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Same memory as bytes, a dtype that every library can move."""
    return values.view(torch.uint8) if values.numel() else values.new_empty(0, dtype=torch.uint8)


def widen(values: torch.Tensor, prescale: float) -> torch.Tensor:
    """Contribution in the wider dtype of the reduction, scaled."""
    return scale(values.to(_WIDE.get(values.dtype, values.dtype)), prescale)


def scale(values: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply by ``factor``; bool stays unchanged, and ``exactly`` handles integers with a factor."""
    return values if factor == 1.0 or values.dtype is torch.bool else _by_parts(lambda part: part * factor, values)


def combine(total: torch.Tensor, other: torch.Tensor, op: ReduceOp) -> torch.Tensor:
    """One step of a reduction; AVERAGE sums (bool: *and*), without dividing."""
    known = _OF_BOOLEANS if total.dtype is torch.bool else _OF_NUMBERS
    if op not in known:
        raise UnsupportedError(
            f"{op.label} is no operation of the engine nccl: use {', '.join(o.label for o in known)}"
        )
    return known[op](total, other)


def finish(total: torch.Tensor, op: ReduceOp, size: int, postscale: float) -> torch.Tensor:
    """Result of a reduction over ``size`` contributions; ``exactly`` handles averages of integers."""
    if op is ReduceOp.AVERAGE and total.dtype is not torch.bool:
        total = _by_parts(lambda part: part / size, total)
    return scale(total, postscale)


def exactly(parts: torch.Tensor, count: int, dtype: DType, how: Reduction) -> torch.Tensor:
    """Reduce contributions of ``count`` integers each, concatenated in ``parts``; the result is on the host."""
    parts = parts.cpu()
    result = parts[:count].clone()
    if count:
        size, step = parts.numel() // count, count * parts.element_size()
        addresses = [parts.data_ptr() + step * member for member in range(size)]
        divisor = size if how.op is ReduceOp.AVERAGE else 1
        core.reduce(addresses, result.data_ptr(), count, dtype, how.op, how.prescale, how.postscale, divisor)
    return result
