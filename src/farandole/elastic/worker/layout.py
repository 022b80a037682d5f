"""``Layout``: what a data set says about the order of its samples, and about which ranks have them near.

A data set with an attribute ``layout`` has samplers ask it; all others are shuffled as their framework does it, and a
batch is shared out in slices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar


class Layout(ABC):
    """Order of the samples of an epoch, and the rows of a global batch of each rank; the same on all ranks."""

    is_planned: ClassVar[bool] = False
    """True if the generation before has ended by a change that was announced: who is missing was told to leave."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name and version of the order, which the state of a sampler keeps."""

    @abstractmethod
    def adopt(self, name: str) -> None:
        """Go on in the order of this name, which a state was saved with. Raises ``UsageError`` if there is no such."""

    @abstractmethod
    def order(self, length: int, seed: int, epoch: int) -> Sequence[int]:
        """All samples in the order of an epoch."""

    def rows(self, samples: Sequence[int], counts: Sequence[int]) -> Sequence[Sequence[int]] | None:
        """Places in ``samples``, those of a global batch, of what each rank computes, ``counts`` of them.

        ``None``: neighbouring slices, as anywhere else.
        """
        return None

    def agree(self) -> None:  # noqa: B027 (most have nothing to agree on)
        """Agree with the other ranks, all of which call this, about what follows from who is there."""
