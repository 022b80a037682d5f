"""Observers of gradients: a few numbers of every rank, summed in the run that reduces the gradients.

    reducer.carry(observer)                     # from now on asked at every backward pass

An observer reads the gradients of its rank before the reduction, and the reduced gradients afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from farandole.gradients.tensors import Param


@final
@dataclass(frozen=True, slots=True)
class Passing:
    """A backward pass that begins: the ``number``-th of ``passes`` that are reduced together in step ``step``."""

    step: int
    number: int
    passes: int
    alone: bool
    """True if there is no other rank to reduce with."""

    @property
    def last(self) -> bool:
        """True if the reduction follows this pass."""
        return self.number >= self.passes


class Observer(ABC):
    """Observer of one optimizer's gradients, called in the order of its methods, on the thread of the backward pass."""

    @abstractmethod
    def begins(self, passing: Passing) -> bool:
        """True to read this rank's gradients in this pass; must be the same on all ranks."""

    @abstractmethod
    def read(self, params: Sequence[Param]) -> None:
        """Read complete gradients of these parameters before their reduction; called once for all, or for a few."""

    @abstractmethod
    def ended(self) -> None:
        """Called at the end of the pass; after the last pass this rank waits for the other ranks."""

    @abstractmethod
    def departs(self, weight: float) -> list[float] | None:
        """Numbers to be summed over the ranks; ``None`` if this rank has none.

        This rank's gradients count ``weight`` times in the mean of all ranks. Not called on a single rank.
        """

    @abstractmethod
    def returns(self, sums: list[float] | None, params: Sequence[Param]) -> None:
        """Called after the reduction. ``sums`` of the ranks' numbers: ``None`` unless every rank had some."""
