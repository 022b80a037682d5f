"""Options of the reduction of one optimizer's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients.tensors import Param
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


@final
@dataclass(frozen=True)
class ReductionOptions:
    """Reduction options of a distributed optimizer.

    >>> ReductionOptions(sparse_as_dense=True).how.op.label
    'Average'

    ``compression`` is the framework's, ``None`` for none. ``groups`` maps ``id(param)`` to the number of its group.
    ``even_groups``: divide these parameters into that many groups instead.
    """

    how: Reduction = field(default_factory=Reduction)
    compression: Any = None
    groups: dict[int, int] = field(default_factory=dict)
    even_groups: int = 0
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set

    def group_numbers(self, params: Sequence[Param]) -> list[int]:
        """Numbers of the groups of ``params``, -1 for none.

        Ranks may have listed parameters and groups in different orders. ``params`` are in the agreed order: it
        determines the even groups, and groups are numbered by their first parameter.
        """
        groups = self.groups
        if self.even_groups:
            members = [id(param) for param in params if id(param) in groups]
            groups = {member: i * self.even_groups // len(members) for i, member in enumerate(members)}
        numbers: dict[int, int] = {}
        return [numbers.setdefault(groups[i], len(numbers)) if (i := id(param)) in groups else -1 for param in params]


def gradient_reduction(op: int, predivide_factor: float) -> Reduction:
    """Reduction of gradients: an average divides by the factor before the sum, and by *size* / factor after it.

    >>> gradient_reduction(ReduceOp.AVERAGE, 4.0).prescale
    0.25

    Raises ``UsageError`` for invalid arguments.
    """
    if predivide_factor != 1.0 and op != ReduceOp.AVERAGE:
        raise UsageError("gradient_predivide_factor splits an average in two: it needs op=Average")
    return reduction(None, op, 1.0 / predivide_factor, predivide_factor).checked()


def listed_groups(groups: Sequence[Sequence[Param]], kind: type) -> dict[int, int]:
    """``ReductionOptions.groups`` from lists of parameters, which must be instances of ``kind``."""
    members = [(i, p) for i, group in enumerate(groups) for p in group]
    if not all(isinstance(p, kind) for _, p in members):
        raise UsageError("groups holds lists of parameters, or is their number")
    found = {id(p): i for i, p in members}
    if len(found) < len(members):
        raise UsageError("a parameter may be in one group only, and once")
    return found


def numbered_groups(
    groups: int | Sequence[Sequence[Param]] | None, params: Sequence[Param], kind: type
) -> tuple[dict[int, int], int]:
    """``groups`` and ``even_groups`` of ``ReductionOptions`` from a user's argument: lists of ``kind``, or a number.

    ``params``: the parameters to divide into groups. Raises ``UsageError`` for invalid groups.
    """
    if groups is None:
        return {}, 0
    if not isinstance(groups, int):
        return listed_groups(groups, kind), 0
    if groups < 0:
        raise UsageError(f"groups={groups}: expected a number from 0, or lists of parameters")
    return {id(param): 0 for param in params if groups}, groups


def refuse_impossible_groups(num_groups: int, groups: Any) -> None:
    """Raise ``UsageError`` for invalid groups, in a framework that reduces all gradients together anyway."""
    if num_groups < 0 or not (groups is None or isinstance(groups, int | list | tuple)):
        raise UsageError(f"num_groups={num_groups}, groups={groups!r}: give a number, or a list of lists of variables")


def checked_passes(passes: int) -> int:
    """Valid ``backward_passes_per_step``; raises ``UsageError`` if below 1."""
    if passes < 1:
        raise UsageError(f"backward_passes_per_step={passes}: it starts from 1")
    return passes
