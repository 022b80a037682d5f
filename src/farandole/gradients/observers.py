"""Observers of gradients: a few numbers of every rank, summed in the run that reduces the gradients.

    reducer.carry(observer)                     # from now on asked at every backward pass

An observer reads the gradients of one rank before anything happens to them, and the reduced ones afterwards.
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
        """True to have this rank's gradients read in this pass; must be the same on all ranks."""

    @abstractmethod
    def read(self, params: Sequence[Param]) -> None:
        """The gradients of these parameters are complete, and still this rank's; all at once, or a few at a time."""

    @abstractmethod
    def ended(self) -> None:
        """The pass is over; from now on this rank waits for others, if it is the last one."""

    @abstractmethod
    def departs(self, weight: float) -> list[float] | None:
        """Numbers to be summed over the ranks; ``None`` if there are none, or if this rank has nothing to say.

        This rank's gradients count ``weight`` times in the mean of all ranks. Not called where there are no others.
        """

    @abstractmethod
    def returns(self, sums: list[float] | None, params: Sequence[Param]) -> None:
        """The gradients are reduced. ``sums``: ``None`` unless every rank had something to say."""
