"""Reducing buckets while the backward pass that fills them still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from farandole.collective import Reduction
from farandole.gradients.overlap import Background
from farandole.runtime.collectives.planned import PlannedLane
from farandole.torch.memory import GradientBucket

BEGIN, WAIT = "begin", "wait"


@final
class OverlappedPass:
    """One backward pass. Buckets are reduced in their order, each as soon as it and all before it are complete.

    What is never complete (a parameter was not used) is reduced by ``finish``. Nothing is, if some rank ``waits``: it
    must see all gradients before it knows how to reduce the first.
    """

    def __init__(
        self,
        lane: PlannedLane,
        buckets: Sequence[GradientBucket],
        point: str,
        how: Reduction,
        weight: float,
        waits: bool,
    ) -> None:
        self._lane, self._buckets, self._how, self._weight = lane, buckets, how, weight
        self._begun = 0
        self._missing = [{id(param) for param in bucket.params} for bucket in buckets]
        self._bucket_of = {id(param): i for i, bucket in enumerate(buckets) for param in bucket.params}
        self.late: torch.Tensor | None = None
        """A parameter whose gradient was added to after its bucket had begun."""
        self._background = Background(lane.label)
        self._states: list[str] = []
        self._background.run(lambda: self._states.extend(lane.meet(point, WAIT if waits else BEGIN)))

    def arrived(self, param: torch.Tensor) -> None:
        """The gradient of ``param`` is complete, unless this is said again.

        Reentrant checkpointing runs a pass within this one for each block, and a parameter of two blocks is in two.
        """
        index = self._bucket_of.get(id(param))
        if index is not None:
            if index < self._begun:
                self.late = param
            self._missing[index].discard(id(param))
            while self._begun < len(self._buckets) and not self._missing[self._begun]:
                self._begin()

    def finish(self) -> bool:
        """Reduce the rest and wait for all; raises what went wrong meanwhile. False if some rank waits."""
        while self._begun < len(self._buckets):
            self._begin()
        self._background.finish()
        return WAIT not in self._states

    def _begin(self) -> None:
        i, bucket = self._begun, self._buckets[self._begun]
        self._begun += 1

        def reduce() -> None:
            if WAIT in self._states:
                return
            with torch.no_grad(), self._lane.phase(f"bucket {i}", "copy", bucket.nbytes):
                bucket.fill_alone()
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            self._lane.allreduce(f"bucket {i}", bucket.array, self._how)

        self._background.run(reduce)
