"""Agreement of the members on the kind and dtype of each gradient: pure, except for the collectives in ``agree``.

    mine = [code(DType.FLOAT32, 1), code(DType.FLOAT32, 0)]     # a dense gradient, and none
    agreed = agree(lane, mine, names)           # raises on every member if one parameter has two dtypes

A code has the dtype's number above the lowest four bits, and in these 0 for no gradient, 1 for a dense one, and 1 + d
for a sparse one with d sparse dimensions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import final

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.errors import MismatchError, UnsupportedError
from farandole.runtime.collectives.planned import PlannedLane

_BITS = 4
_KINDS = (1 << _BITS) - 1
_FOREIGN = len(DType) + 1
"""Number of every dtype that the engines cannot reduce."""


def code(dtype: DType | None, kind: int) -> int:
    """Code of a gradient. With ``kind`` 0 (no gradient), ``dtype`` is the dtype that a gradient would have.

    >>> code(DType.UINT8, 1)
    17
    """
    return (_FOREIGN if dtype is None else dtype + 1) << _BITS | kind


ANY = 0
"""Code of an absent gradient whose dtype is not fixed."""


@final
class Agreed:
    """Agreed codes. ``kinds`` per parameter: 0 if no member has a gradient, 1 dense, 1 + d sparse."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.kinds = [code & _KINDS for code in codes]

    @cached_property
    def is_dense(self) -> bool:
        """True if every parameter has a dense gradient."""
        return all(kind == 1 for kind in self.kinds)

    def dtypes(self, before: Sequence[DType | None]) -> list[DType | None]:
        """Dtypes of the gradients; for a parameter without a gradient, its dtype in ``before``."""
        pairs = zip(self.codes, before, strict=True)
        return [_dtype(code >> _BITS) if code & _KINDS else dtype for code, dtype in pairs]


def agree(lane: PlannedLane, mine: Sequence[int], names: Sequence[str]) -> Agreed:
    """Agree with all members. Raises ``MismatchError`` on all if dtypes differ, ``UnsupportedError`` for odd dtypes."""
    least = [-(code >> _BITS) if code >> _BITS else -_FOREIGN - 1 for code in mine]
    asked = array("i", [*mine, *least])
    lane.allreduce("codes", Array.of_numbers(asked), Reduction(ReduceOp.MAX))
    codes = asked[: len(mine)].tolist()
    pairs = zip(codes, asked[len(mine) :], strict=True)
    differing = [i for i, (code, least) in enumerate(pairs) if code >> _BITS and code >> _BITS != -least]
    if differing:
        raise MismatchError(_difference(lane, mine, names, differing))
    foreign = [name for name, code in zip(names, codes, strict=True) if code >> _BITS == _FOREIGN and code & _KINDS]
    if foreign:
        raise UnsupportedError(
            f"the gradients of {', '.join(foreign[:4])} have a dtype that does not travel; these do: "
            f"{', '.join(dtype.label for dtype in DType)}"
        )
    return Agreed(codes)


def _difference(lane: PlannedLane, mine: Sequence[int], names: Sequence[str], differing: Sequence[int]) -> str:
    """Error text that lists the dtype of each member. Collective."""
    own, every = array("i", mine), array("i", bytes(4 * lane.size * len(mine)))
    lane.allgather("codes", Array.of_numbers(own), Array.of_numbers(every), [len(mine)] * lane.size)
    first = differing[0]
    each = [(lane.name(member), code >> _BITS) for member, code in enumerate(every[first :: len(mine)])]
    said = "; ".join(f"{_label(number)} on {name}" for name, number in each if number)
    others = f", and {len(differing) - 1} more parameters differ" if len(differing) > 1 else ""
    return (
        f"the gradient of {names[first]} has different dtypes: {said}{others}. Cast the model (model.double(), "
        "param.grad_dtype) on every rank alike"
    )


def _dtype(number: int) -> DType | None:
    return None if number == _FOREIGN else DType(number - 1)


def _label(number: int) -> str:
    dtype = _dtype(number)
    return "another dtype" if dtype is None else dtype.label
