"""Reducing buckets while the backward pass that fills them still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from farandole.gradients.overlap import Background
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.lanes.reduction import Reduction
from farandole.torch.memory import GradientBucket

BEGIN = "begin"


@final
class OverlappedPass:
    """One backward pass. Buckets are reduced in their order, each as soon as it and all before it are complete.

    What is never complete (a parameter was not used) is reduced by ``finish``.
    """

    def __init__(
        self, lane: PlannedLane, buckets: Sequence[GradientBucket], point: str, how: Reduction, weight: float
    ) -> None:
        self._lane, self._buckets, self._how, self._weight = lane, buckets, how, weight
        self._begun = 0
        self._missing = [len(bucket.params) for bucket in buckets]
        self._bucket_of = {id(param): i for i, bucket in enumerate(buckets) for param in bucket.params}
        self._background = Background(lane.label)
        self._background.run(lambda: lane.meet(point, BEGIN))

    def arrived(self, param: torch.Tensor) -> None:
        """The gradient of ``param`` is complete."""
        place = self._bucket_of.get(id(param))
        if place is not None:
            self._missing[place] -= 1
            while self._begun < len(self._buckets) and not self._missing[self._begun]:
                self._begin()

    def finish(self) -> None:
        """Reduce the rest and wait for all; raises what went wrong meanwhile."""
        while self._begun < len(self._buckets):
            self._begin()
        self._background.finish()

    def _begin(self) -> None:
        i, bucket = self._begun, self._buckets[self._begun]
        self._begun += 1

        def reduce() -> None:
            with torch.no_grad(), self._lane.phase(f"bucket {i}", "copy", bucket.nbytes):
                bucket.fill()
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            self._lane.allreduce(f"bucket {i}", bucket.array, self._how)

        self._background.run(reduce)
