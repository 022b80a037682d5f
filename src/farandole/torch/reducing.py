"""What a distributed optimizer asks of whoever reduces its gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from farandole.elastic.worker.ballot import Ballot, Meet
from farandole.runtime.session.process_sets import global_process_set
from farandole.torch.gradients import Terms

Closure: TypeAlias = Callable[[], Any]


class Reducer(ABC):
    """Gradients of one optimizer, reduced on ``terms``: ``settle``, ``vote``, the optimizer's own step, ``stepped``."""

    passes_per_step = 1

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self.ballot: Ballot | None = None
        """Where steps are voted, in elastic jobs."""

    @property
    def is_global(self) -> bool:
        """True if all ranks reduce together."""
        return self._terms.process_set is global_process_set

    def vote(self) -> None:
        """Where steps are voted: return when all ranks have reduced their gradients, and know that."""
        if self.ballot is not None:
            self.ballot.cast(self._meet())

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

    @abstractmethod
    def rejoin(self, label: str) -> None:
        """A generation of an elastic job begins: nothing of the last one counts. ``label`` is the same on all ranks."""

    @abstractmethod
    def wrap(self, closure: Closure) -> Closure:
        """A closure for ``Optimizer.step`` that leaves reduced gradients."""

    @abstractmethod
    def watch_again(self) -> None:
        """There are more parameters than before."""

    @abstractmethod
    def _meet(self) -> Meet:
        """How the ranks that reduce together hear each other."""
