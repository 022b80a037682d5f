"""The kinds of gradients that ranks have, and what they are together: pure functions, but for the asking.

    mine = [code_of(param, param.grad) for param in params]
    agreed = agree(lane, mine, names)           # raises on every member if one parameter has two dtypes

A code has the dtype's number above the lowest four bits, and in these 0 for no gradient, 1 for a dense one, and 1 + d
for a sparse one with d sparse dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch

from farandole.collective import ReduceOp, Reduction
from farandole.errors import MismatchError, UnsupportedError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.torch.adapter import DTYPES, adapter

_BITS = 4
_KINDS = (1 << _BITS) - 1
_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES, 1)}
_DTYPES = {number: dtype for dtype, number in _NUMBERS.items()}
_FOREIGN = len(_NUMBERS) + 1
"""The number of every dtype that does not travel."""


@final
class Agreed:
    """Agreement on gradients. ``kinds`` per parameter: 0 none on any member, 1 a dense one, 1 + d a sparse one."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.kinds = [code & _KINDS for code in codes]

    @cached_property
    def is_dense(self) -> bool:
        """True if every parameter has a dense gradient."""
        return all(kind == 1 for kind in self.kinds)

    def dtypes(self, before: Sequence[torch.dtype]) -> list[torch.dtype]:
        """Dtypes of the gradients; where there is none, the dtype ``before``."""
        pairs = zip(self.codes, before, strict=True)
        return [_DTYPES[code >> _BITS] if code & _KINDS else dtype for code, dtype in pairs]


def dtype_of(param: torch.Tensor) -> torch.dtype | None:
    """The dtype that a gradient of ``param`` must have; ``None`` for any."""
    dtype: torch.dtype | None = getattr(param, "grad_dtype", param.dtype)  # PyTorch 2.10 lets it be another one
    return dtype


def code_of(param: torch.Tensor, gradient: torch.Tensor | None) -> int:
    """The code of one gradient; where there is none, it says which dtype one must have."""
    if gradient is None:
        dtype = dtype_of(param)
        return 0 if dtype is None else _NUMBERS.get(dtype, _FOREIGN) << _BITS
    kind = 1 + gradient.sparse_dim() if gradient.is_sparse else 1
    return _NUMBERS.get(gradient.dtype, _FOREIGN) << _BITS | kind


def agree(lane: PlannedLane, mine: Sequence[int], names: Sequence[str]) -> Agreed:
    """Ask all members. Raises ``MismatchError`` on every one where dtypes differ, ``UnsupportedError`` for odd ones."""
    least = [-(code >> _BITS) if code >> _BITS else -_FOREIGN - 1 for code in mine]
    asked = torch.tensor([*mine, *least], dtype=torch.int32)
    lane.allreduce("codes", adapter.array(asked), Reduction(ReduceOp.MAX))
    codes: list[int] = asked[: len(mine)].tolist()
    pairs = zip(codes, asked[len(mine) :].tolist(), strict=True)
    differing = [i for i, (code, least) in enumerate(pairs) if code >> _BITS and code >> _BITS != -least]
    if differing:
        raise MismatchError(_difference(lane, mine, names, differing))
    foreign = [name for name, code in zip(names, codes, strict=True) if code >> _BITS == _FOREIGN and code & _KINDS]
    if foreign:
        raise UnsupportedError(
            f"the gradients of {', '.join(foreign[:4])} have a dtype that does not travel; these do: "
            f"{', '.join(dtype.label for dtype in DTYPES.values())}"
        )
    return Agreed(codes)


def _difference(lane: PlannedLane, mine: Sequence[int], names: Sequence[str], differing: Sequence[int]) -> str:
    """Error text that says which member has which dtype. Collective."""
    own = torch.tensor(mine, dtype=torch.int32)
    every = torch.empty(lane.size, len(mine), dtype=torch.int32)
    lane.allgather("codes", adapter.array(own), adapter.array(every), [len(mine)] * lane.size)
    first = differing[0]
    each = [(lane.name(member), code >> _BITS) for member, code in enumerate(every[:, first].tolist())]
    said = "; ".join(f"{_DTYPES.get(number, 'another dtype')} on {name}" for name, number in each if number)
    others = f", and {len(differing) - 1} more parameters differ" if len(differing) > 1 else ""
    return (
        f"the gradient of {names[first]} has different dtypes: {said}{others}. Cast the model (model.double(), "
        "param.grad_dtype) on every rank alike"
    )
