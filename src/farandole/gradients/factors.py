"""Factors of the gradients of collectives: of the true derivative, and of Horovod.

>>> HOROVOD.allgather, DERIVATIVE.allgather
(-1, 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from farandole import events
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UnsupportedError
from farandole.runtime.session.init import current
from farandole.runtime.session.process_sets import ProcessSet


@final
@dataclass(frozen=True)
class Factors:
    """Exponents e, per collective: its gradient is the derivative times (number of members) ** e."""

    allgather: int = 0
    broadcast: int = 0
    reducescatter: int = 0


DERIVATIVE = Factors()
HOROVOD = Factors(allgather=-1, broadcast=-1, reducescatter=1)
"""Horovod 0.28.1 averages the gradients of allgather and broadcast, and does not undo the average of reducescatter.

For ``op=Sum`` it multiplies the gradients of reducescatter by the number of members: the exponent is 1 for both.
"""


def require_linear(how: Reduction, verb: str) -> None:
    """Raise ``UnsupportedError`` for a reduction without a known gradient."""
    if how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(
            f"the gradient of {verb} is known for op=Sum and op=Average, found op={how.op.label}: "
            "call it on a tensor without a gradient (tensor.detach(), tf.stop_gradient(tensor))"
        )


_told: list[bool] = []


def factor(power: int, process_set: ProcessSet, module: str) -> float:
    """Ratio of Horovod's gradient to the derivative. Rank 0 logs a warning at the first ratio other than 1."""
    members = len(process_set.ranks)
    if power and members > 1 and not _told:
        _told.append(True)
        if current("a gradient").topology.rank == 0:
            events.logger.warning(
                "gradients of allgather and broadcast are divided by the number of ranks here, those of reducescatter "
                "multiplied by it, as in Horovod 0.28.1, whose package this script imports; %s has the derivatives",
                module,
            )
    return float(members) ** power
