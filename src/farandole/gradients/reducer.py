"""Interface of the reducers of a distributed optimizer's gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from farandole.elastic.worker.step_vote import Meet, PassedSamples, StepVote
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.snapshots import StepSnapshots
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.divergence import StepDigests, broadcasts
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


class Reducer(ABC, Generic[T]):
    """Reducer of one optimizer's gradients; per step: ``settle``, ``vote``, the optimizer's own step, ``stepped``."""

    passes_per_step = 1

    def __init__(self, terms: ReductionOptions, tensors: Tensors[T]) -> None:
        self._terms, self._tensors = terms, tensors
        self.step_vote: StepVote | None = None
        """The vote on every step, in elastic jobs."""
        self.samples: int | None = None
        """Samples of the last step over all ranks; ``None`` if no sampler of an elastic state counts them."""
        self._passed = PassedSamples()
        self._snapshots = StepSnapshots(tensors)
        self._snapshot: StepDigests | None = None
        """Snapshot of the last step, if no meeting has compared it yet."""
        self._broadcasts = -1
        """Number of broadcasts before the first step; -1: a later broadcast does not matter."""
        self._may_begin_late = True
        """True while a broadcast after the first step may still restart the comparison, which happens once."""

    steps_together = False
    """True if a step needs all members after the reduction, too, because they shard the optimizer's state."""

    @property
    def is_global(self) -> bool:
        """True if all ranks reduce together."""
        return self._terms.process_set is global_process_set

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce together."""
        return self._terms.process_set

    def vote(self) -> None:
        """In elastic jobs, wait until all ranks know that all have reduced their gradients: the step is voted.

        In other jobs, take a snapshot of this rank's parameters and gradients, to be compared at the next meeting.
        """
        self.vote_with(self.snapshot())

    def snapshot(self) -> StepDigests | None:
        """Snapshot of the parameters and gradients of this step, once in a step; ``None`` if none is due."""
        return self._snapshots.digest(self._named) if self._snapshots.is_due() else None

    def vote_with(self, snapshot: StepDigests | None) -> None:
        """``vote`` with a snapshot that was taken before: some parameters change before the vote."""
        if self.step_vote is not None:
            self.samples = self.step_vote.cast(self._meeting(snapshot), self._passed.total) or None
        elif snapshot is not None:
            self._snapshot = snapshot
            self._broadcasts = self._broadcasts_now() if self._may_begin_late and not snapshot.step else -1

    def _uncompared(self) -> StepDigests | None:
        """Remove and return the snapshot that the next meeting compares, if there is one.

        The first step's snapshot is dropped if a broadcast followed it: TensorFlow scripts make variables in that step
        and then broadcast them, which overwrites the differences. The comparison then starts with the second step.
        """
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None or self._broadcasts in (-1, self._broadcasts_now()):
            return snapshot
        self.compare_anew()
        self._may_begin_late = False
        return None

    def _broadcasts_now(self) -> int:
        return broadcasts.over(self._terms.process_set.process_set_id or 0)

    def compare_anew(self) -> None:
        """Restart the comparison for new parameters: all of the next steps are compared. On all ranks at once."""
        self._snapshots = StepSnapshots(self._tensors)
        self._may_begin_late = True

    def _forget_snapshots(self) -> None:
        """Restart the comparison and drop the last snapshot, on all ranks at once."""
        self.compare_anew()
        self._snapshot = None

    @abstractmethod
    def settle(self) -> None:
        """Reduce what has not been reduced since the last step."""

    @abstractmethod
    def stepped(self) -> None:
        """Called after the reduced gradients were applied."""

    @abstractmethod
    def zeroed(self) -> None:
        """Called after the gradients were zeroed: later gradients are new."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the progress of the current step."""

    def abandon(self) -> None:
        """Undo the current step, which will not be applied. Most reducers have nothing to undo."""

    @abstractmethod
    def rejoin(self, label: str) -> None:
        """Begin a new generation of an elastic job, without the previous state. ``label`` is the same on all ranks."""

    @abstractmethod
    def watch_again(self) -> None:
        """Called when the optimizer got more parameters."""

    @abstractmethod
    def _named(self) -> list[tuple[str, Param]]:
        """Named parameters that all ranks update alike; [] if no other rank has them."""

    @abstractmethod
    def _meeting(self, snapshot: StepDigests | None) -> Meet:
        """Meeting for a vote, of the ranks that reduce together; it also compares ``snapshot``."""
