"""Conversion of a user's arguments into a reduction: an operation with its scale factors.

>>> reduction(op=ReduceOp.SUM, prescale_factor=0.5).prescale
0.5
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from farandole.collective import Kind, ReduceOp, Reduction

REDUCTIONS: dict[Kind, frozenset[ReduceOp]] = {
    Kind.ALLREDUCE: frozenset(ReduceOp),
    Kind.REDUCESCATTER: frozenset(ReduceOp) - {ReduceOp.ADASUM},
}
COMPLEX_REDUCTIONS = frozenset({ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.PRODUCT})


@lru_cache(maxsize=256)  # every collective calls this function, with the same few arguments
def reduction(
    average: bool | None = None, op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> Reduction:
    """Make a reduction from a user's arguments: ``op``, or Horovod's older ``average``; without both, the average."""
    if average is not None and op is not None:
        return Reduction(wrong="both average= and op= are given: keep op=, average= is its older form")
    given: object = average
    if not isinstance(given, bool | int | np.bool_ | None):
        return Reduction(wrong=f"average={average!r}: it is True or False, and a name goes by name=")
    if op is None:
        op = ReduceOp.AVERAGE if average is None or average else ReduceOp.SUM
    if op not in REDUCTIONS[Kind.ALLREDUCE]:
        return Reduction(wrong=f"op={op!r} is no reduction: use one of {', '.join(o.label for o in ReduceOp)}")
    return Reduction(ReduceOp(op), float(prescale_factor), float(postscale_factor))
