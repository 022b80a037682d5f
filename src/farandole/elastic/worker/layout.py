"""``Layout``: order of the samples of a data set, and which ranks store each sample locally.

Samplers use the attribute ``layout`` of a data set. A data set without it is shuffled as its framework does, and a
batch is split into slices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar


class Layout(ABC):
    """Order of the samples of an epoch, and the rows of a global batch for each rank; the same on all ranks."""

    is_planned: ClassVar[bool] = False
    """True if the previous generation ended by an announced change: a missing rank has left and did not fail."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name and version of the order of an epoch that begins now; the state of a sampler keeps it."""

    @abstractmethod
    def check(self, name: str) -> None:
        """Raise ``UsageError`` if there is no order with this name, from a saved state."""

    @abstractmethod
    def order(self, length: int, seed: int, epoch: int, name: str = "") -> Sequence[int]:
        """All samples in the order of an epoch that has this ``name``, or begins now."""

    def rows(self, samples: Sequence[int], counts: Sequence[int]) -> Sequence[Sequence[int]] | None:
        """For each rank, the ``counts`` positions in ``samples`` (a global batch) that it computes.

        ``None``: contiguous slices, as without a layout.
        """
        return None

    def begin(self, order: Sequence[int], position: int) -> None:  # noqa: B027 (most need not know)
        """Note that the training takes the batch at ``position`` of ``order``: no rank needs an earlier sample."""

    def agree(self) -> None:  # noqa: B027 (most have nothing to agree on)
        """Agree with the other ranks on what depends on the current ranks. Collective."""
