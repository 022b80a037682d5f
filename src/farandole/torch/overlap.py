"""Reducing buckets while the backward pass that fills them still runs.

Two threads. The thread of the backward pass tells ``arrived`` what is complete, and has ``_begun``, ``_missing`` and
``late`` for itself. The background thread does the tasks it is given in their order, alone uses the lane, and alone
touches ``_states`` until ``finish`` has joined it. A bucket goes from one to the other: the background thread takes its
gradients and reduces it; the results are written to ``param.grad`` only after ``finish``, by the caller of that (those
of a gradient that is reduced where it lies are there sooner).

That ``param.grad`` is read without a lock is safe as autograd has completed a gradient before it tells of it. It may
add to it again only in a nested pass. Then nobody knows which part the bucket has taken: that is ``late``, and an error
on every member.

Buckets begin in one order on all members, though a later one may be complete sooner: a lane knows what a member sends
by its order alone.
"""

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
        # A task as well: here, the backward pass would wait for the slowest rank before its first gradient is reduced.
        self._background.run(lambda: self._states.extend(lane.meet(point, WAIT if waits else BEGIN)))

    def arrived(self, param: torch.Tensor) -> None:
        """The gradient of ``param`` is complete, unless this is said again.

        Reentrant checkpointing runs a pass within this one for each block, and a parameter of two blocks is in two.
        """
        index = self._bucket_of.get(id(param))
        if index is not None:
            if index < self._begun:  # no error here: the others must hear of it in a meeting, once the lane is free
                self.late = param
            self._missing[index].discard(id(param))
            while self._begun < len(self._buckets) and not self._missing[self._begun]:
                self._begin()

    def finish(self) -> bool:
        """Reduce the rest and wait for all; raises what went wrong meanwhile. False if some rank waits."""
        while self._begun < len(self._buckets):
            self._begin()
        self._background.finish()  # raises what a task has: ``_states`` may be empty then, which is not "nobody waits"
        return WAIT not in self._states

    def _begin(self) -> None:
        i, bucket = self._begun, self._buckets[self._begun]  # now: ``_begun`` has moved on when the task runs
        self._begun += 1

        def reduce() -> None:
            if WAIT in self._states:  # of all members alike, and known, as the meeting was the first task
                return
            # A new thread has gradients enabled, whatever the thread of the backward pass has: the mode is per thread.
            with torch.no_grad(), self._lane.phase(f"bucket {i}", "copy", bucket.nbytes):
                bucket.fill_alone()
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            self._lane.allreduce(f"bucket {i}", bucket.array, self._how)

        self._background.run(reduce)
