"""Agreement on loss scales: a step is taken by all ranks or by none, whichever of them has had an overflow.

    agreement = LossScaleAgreement()
    overflow = agreement.reach(found_overflow, scale)       # the same on every rank

A sum or average carries infinities and NaN to all ranks, which then see the same. Where gradients are local (``Min``,
``Max``, Adasum, a rank without a backward pass) they do not, and ranks that skip other steps have other scales.
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
    """Scales of gradients that an optimizer with a lag has not handed out yet."""

    def __init__(self) -> None:
        self._waiting: deque[V] = deque()

    def due(self, scale: V, lag: int) -> V:
        """The scale of the gradients that are handed out now, where those of this step have ``scale``.

        In the first steps of a lag gradients are zeros, which any scale fits.
        """
        if not lag:
            return scale
        self._waiting.append(scale)
        return self._waiting.popleft() if len(self._waiting) > lag else scale


@final
class LossScaleAgreement:
    """One small collective for each step of the ranks of ``process_set``, which use several in the same order."""

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        self._process_set = process_set
        self._name = ""  # numbered by the first use: ranks may make some that they never use

    def reach(self, overflow: bool, scale: float) -> bool:
        """True if any rank has had an ``overflow``: infinity or NaN among its gradients. Collective.

        ``scale``: what this rank's loss was multiplied by. Raises ``MismatchError`` if that differs between ranks.
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
