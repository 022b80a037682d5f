"""Interface of whatever reduces the gradients of a distributed optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from farandole.elastic.worker.step_vote import Meet, StepVote
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.snapshots import StepSnapshots
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.divergence import StepDigests, broadcasts
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


class Reducer(ABC, Generic[T]):
    """Gradients of one optimizer, reduced on ``terms``: ``settle``, ``vote``, the optimizer's own step, ``stepped``."""

    passes_per_step = 1

    def __init__(self, terms: ReductionOptions, tensors: Tensors[T]) -> None:
        self._terms, self._tensors = terms, tensors
        self.step_vote: StepVote | None = None
        """The vote on every step, in elastic jobs."""
        self.samples: int | None = None
        """Samples of the last step, all ranks together; ``None`` where no sampler of an elastic state counts them."""
        self._passed = 0
        """Samples of all ranks together that the passes since the last step were over, as far as they are counted."""
        self._snapshots = StepSnapshots(tensors)
        self._snapshot: StepDigests | None = None
        """Snapshot of the last step, if no meeting has compared it yet."""
        self._broadcasts = -1
        """Number of broadcasts before the first step; -1: a later one changes nothing."""
        self._may_begin_late = True
        """True until ranks have begun with what was broadcast after their first step: that is done once."""

    steps_together = False
    """True if a step needs all members after the reduction as well, as they share out the optimizer's state."""

    @property
    def is_global(self) -> bool:
        """True if all ranks reduce together."""
        return self._terms.process_set is global_process_set

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce together."""
        return self._terms.process_set

    def vote(self) -> None:
        """In elastic jobs, return when all ranks have reduced their gradients, and know that: the step is voted.

        In others, keep a snapshot of what this rank steps with, to be compared when the ranks meet next.
        """
        snapshot = self._snapshots.take(self._named) if self._snapshots.is_due() else None
        if self.step_vote is not None:
            self.samples = self.step_vote.cast(self._meet(snapshot), self._passed) or None
        elif snapshot is not None:
            self._snapshot = snapshot
            self._broadcasts = self._broadcasts_now() if self._may_begin_late and not snapshot.step else -1

    def _uncompared(self) -> StepDigests | None:
        """Take the snapshot that the next meeting is to compare, if there is one.

        None of the first step where a broadcast has come after it: scripts of TensorFlow make variables in that step,
        and broadcast them then. What differed is overwritten. So the second step is the first that counts.
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
        """The next step is the first of other parameters: the first ones are all looked at. On all ranks at once."""
        self._snapshots = StepSnapshots(self._tensors)
        self._may_begin_late = True

    def _forget_snapshots(self) -> None:
        """Begin anew, as all ranks do now."""
        self.compare_anew()
        self._snapshot = None

    @abstractmethod
    def settle(self) -> None:
        """Reduce what has not been reduced since the last step."""

    @abstractmethod
    def stepped(self) -> None:
        """The reduced gradients have been applied."""

    @abstractmethod
    def zeroed(self) -> None:
        """The gradients have been zeroed: whatever comes next is new."""

    @abstractmethod
    def restart(self) -> None:
        """Forget how far a step has come."""

    def abandon(self) -> None:
        """Go back to before the step under way, which will not be applied; most change nothing before."""

    @abstractmethod
    def rejoin(self, label: str) -> None:
        """A generation of an elastic job begins: nothing of the last one counts. ``label`` is the same on all ranks."""

    @abstractmethod
    def watch_again(self) -> None:
        """There are more parameters than before."""

    @abstractmethod
    def _named(self) -> list[tuple[str, Param]]:
        """The parameters that all ranks step alike, by name; [] if this rank shares them with nobody."""

    @abstractmethod
    def _meet(self, snapshot: StepDigests | None) -> Meet:
        """Meeting of the ranks that reduce together, for a vote; it compares ``snapshot``, too."""
