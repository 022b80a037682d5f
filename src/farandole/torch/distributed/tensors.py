"""Conversion of ``torch.distributed`` tensors and reductions for engines.

given = FlatTensor(tensor)                  # contiguous memory: the tensor's own, or a copy
engine.allreduce(given.array, reduction_of(options.reduceOp, tensor.dtype))
given.written()                             # the copy goes back into the tensor
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, final

import torch
import torch.distributed as dist

from farandole.adapters.torch import adapter
from farandole.collective import Array, ReduceOp, Reduction
from farandole.engines.engine import Engine
from farandole.errors import UnsupportedError, UsageError

KINDS: Any = dist.ReduceOp.RedOpType
"""PyTorch's enumeration of reductions."""

_OPS = {
    KINDS.SUM: ReduceOp.SUM,
    KINDS.AVG: ReduceOp.AVERAGE,
    KINDS.MIN: ReduceOp.MIN,
    KINDS.MAX: ReduceOp.MAX,
    KINDS.PRODUCT: ReduceOp.PRODUCT,
}
BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    KINDS.BAND: torch.bitwise_and,
    KINDS.BOR: torch.bitwise_or,
    KINDS.BXOR: torch.bitwise_xor,
}
"""Operations that engines lack: all members' tensors are gathered, and combined in the order of ranks."""


@final
class FlatTensor:
    """A tensor as contiguous memory: its own, or a copy."""

    __slots__ = ("array", "memory", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise UnsupportedError(f"a tensor with layout {tensor.layout} does not travel: pass tensor.to_dense()")
        plain = tensor.detach()
        self.tensor = plain
        self.memory = adapter.dense(plain) if plain.is_cpu else plain.to("cpu", copy=True).contiguous()
        self.array: Array = adapter.array(self.memory)

    def written(self) -> None:
        """Copy the memory back into the tensor, if it is a copy; otherwise notify autograd."""
        if self.memory is not self.tensor:
            self.tensor.copy_(self.memory)
        else:
            adapter.written(self.tensor)


def kind_of(op: Any) -> Any:
    """Kind of a ``ReduceOp``; PyTorch passes an object or a kind."""
    return getattr(op, "op", op)


def reduction_of(op: Any, dtype: torch.dtype) -> Reduction:
    """Engine reduction of ``op``; raises ``UsageError`` for a bitwise operation on floats."""
    kind = kind_of(op)
    if kind == KINDS.PREMUL_SUM:
        raise UnsupportedError("PREMUL_SUM: multiply before, and use SUM")
    if kind in BITWISE:
        raise UsageError(f"{kind.name} of {dtype}: bits are combined of integers and bool only")
    return Reduction(_OPS[kind])


def combined(op: Any, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Bitwise combination of all ``parts``."""
    return reduce(BITWISE[kind_of(op)], parts)


def single(tensors: Sequence[torch.Tensor], verb: str) -> torch.Tensor:
    """The single tensor of a call; raises ``UsageError`` for several (one for each device of a process)."""
    if len(tensors) != 1:
        raise UsageError(f"{verb}: a process gives one tensor, found {len(tensors)}")
    return tensors[0]


def require_fit(verb: str, into: torch.Tensor, count: int, out_of: torch.Tensor) -> None:
    """Raise ``UsageError`` unless ``into`` has ``count`` elements of ``out_of``'s dtype; engines do not check."""
    if into.numel() != count or into.dtype != out_of.dtype:
        raise UsageError(
            f"{verb}: the output must have {count} elements of {out_of.dtype}, found {into.numel()} of {into.dtype}"
        )


def gather_parts(engine: Engine, given: FlatTensor, parts: Sequence[torch.Tensor]) -> None:
    """Gather all members' tensors into ``parts``, which may have different numbers of elements. Collective."""
    counts = [part.numel() for part in parts]
    whole = FlatTensor(given.memory.new_empty(sum(counts)))
    engine.allgather(given.array, whole.array, counts)
    spread(whole.memory, parts)


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all ``parts``, one after the other."""
    return torch.cat([part.detach().reshape(-1) for part in parts])


def spread(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy consecutive pieces of ``whole`` into ``parts``."""
    counts = [part.numel() for part in parts]
    pieces = [whole[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]
    for part, piece in zip(parts, pieces, strict=True):
        part.detach().copy_(piece.view(part.shape))


def counts_of(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Number of elements to send to, or receive from, each member."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits:
        if sum(splits) != rows or len(splits) != size:
            raise UsageError(f"all_to_all_single: {list(splits)} does not split {rows} rows among {size} members")
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]
    if rows % size:
        raise UsageError(f"all_to_all_single: {rows} rows cannot be split evenly among {size} members: pass splits")
    return [tensor.numel() // size] * size
