"""Batches of sample indices of one rank, from the current position in the epoch, for loaders of frameworks.

batches = IndexBatches(sampler, batch_size=32)
for indices in batches: ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import final

from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.elastic.worker.sampler import GlobalBatch
from farandole.errors import UsageError
from farandole.runtime.session.init import current, is_initialized
from farandole.settings import Settings


@final
class IndexBatches:
    """Batches of this rank, of ``batch_size`` samples, or of its part of the ``global_batch_size`` of all ranks.

    ``whole``: every rank gets whole global batches, for virtual workers. Raises ``UsageError`` for invalid sizes.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int, global_batch_size: int = 0, whole: bool = False) -> None:
        if min(batch_size, global_batch_size + 1) < 1:
            raise UsageError(f"batch_size={batch_size}, global_batch_size={global_batch_size}: give one of them")
        if whole and not global_batch_size:
            raise UsageError("elastic.DataLoader(whole=True): with virtual workers a step has a global_batch_size")
        self.sampler, self._whole = sampler, whole
        self._sizes = (batch_size, global_batch_size)

    def plan(self) -> list[GlobalBatch]:
        """Global batches that are left of this epoch."""
        return list(self.sampler.cursor.batches(*self._sizes))

    def __iter__(self) -> Iterator[list[int]]:
        cursor = self.sampler.cursor
        for batch in self.plan():
            yield cursor.samples_of(batch, whole=self._whole)

    def __len__(self) -> int:
        return len(self.plan())


def is_control() -> bool:
    """True in a job that was started with ``--input fake``: loaders give their first batch again and again."""
    settings = current().settings if is_initialized() else Settings.resolve(environment=os.environ)
    return settings.input == "fake"
