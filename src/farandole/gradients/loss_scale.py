"""Agreement on loss scales: if one rank has an overflow, all ranks skip the step.

    agreement = LossScaleAgreement()
    overflow = agreement.reach(found_overflow, scale)       # the same on every rank

A sum or average carries infinities and NaN to all ranks, so all see the same overflow. With local gradients (``Min``,
``Max``, Adasum, a rank without a backward pass), ranks would skip different steps, and their scales would differ.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from typing import Generic, TypeVar, final

from farandole.collective import Array, Kind, ReduceOp, Reduction
from farandole.errors import MismatchError
from farandole.runtime.collectives.verbs import number_of
from farandole.runtime.lanes.call import Call
from farandole.runtime.session.init import current, takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

_numbers = itertools.count()
V = TypeVar("V")


@final
class Lagging(Generic[V]):
    """Loss scales of gradients that an optimizer with a lag has not returned yet."""

    def __init__(self) -> None:
        self._waiting: deque[V] = deque()

    def due(self, scale: V, lag: int) -> V:
        """Scale of the gradients that are returned now; the gradients of this step have ``scale``.

        The first steps of a lag return zeros, for which any scale is right.
        """
        if not lag:
            return scale
        self._waiting.append(scale)
        return self._waiting.popleft() if len(self._waiting) > lag else scale


@final
class LossScaleAgreement:
    """One small collective per step over ``process_set``. All ranks must use several agreements in the same order."""

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        self._process_set = process_set
        self._name = ""  # numbered at the first use, because ranks may make agreements that they never use

    def reach(self, overflow: bool, scale: float) -> bool:
        """True if any rank has an ``overflow``: infinity or NaN in its gradients. Collective.

        ``scale``: factor of this rank's loss. Raises ``MismatchError`` if the factor differs between ranks.
        """
        if not takes_part(self._process_set, "a loss scale"):
            return overflow
        self._name = self._name or f"{Kind.ALLREDUCE.label}.grad_scaler.{next(_numbers)}"
        asked = array("d", [float(overflow), scale, -scale])
        how, number = Reduction(ReduceOp.MAX), number_of(self._process_set)
        call = Call(Kind.ALLREDUCE, self._name, Array.of_numbers(asked), (len(asked),), number, how)
        current("a loss scale").submit([call], background=False).wait()
        anywhere, highest, lowest = asked[0], asked[1], -asked[2]
        if highest != lowest:
            raise MismatchError(
                f"loss scales differ between ranks, from {lowest:g} to {highest:g}: begin alike, and after loading "
                "a checkpoint scaler.load_state_dict(hvd.broadcast_object(scaler.state_dict(), root_rank=0))"
            )
        return bool(anywhere)
