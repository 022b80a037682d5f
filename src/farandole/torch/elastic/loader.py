"""``DataLoader``: torch's, with batches that an ``ElasticSampler`` keeps account of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from farandole.elastic.worker.sampler import GlobalBatch
from farandole.errors import UsageError
from farandole.torch.elastic.sampler import ElasticSampler

TWICE = ("batch_sampler", "shuffle", "drop_last", "generator")
"""Arguments of torch's loader that the sampler decides about."""


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Torch's ``DataLoader`` over what is left of an epoch; a batch counts when the step that used it is voted.

    >>> loader = hvd.elastic.DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2)
    >>> for x, y in loader:
    ...     loss(model(x), y).backward()
    ...     optimizer.step()

    ``batch_size`` is that of each rank. ``global_batch_size``, in its place, is that of all ranks together: then the
    sequence of global batches does not depend on who is there. No sample is repeated or left out: in the last step of
    an epoch ranks may have unequally many, and one that has none computes on a sample that weighs nothing.

    ``whole``: every rank gets the global batches as they are; for virtual workers, whose ``optimizer.shards(len(x))``
    takes the rows of this rank from them.

    Worker processes and prefetching are torch's. What they have prepared, and no step has used, does not count; after a
    change of the workers begin a new iteration, which ``elastic.run`` does as it calls the training function again.
    Other arguments are those of torch's loader. Raises ``ValueError`` for what the sampler decides about.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        sampler: ElasticSampler,
        global_batch_size: int = 0,
        whole: bool = False,
        **others: Any,
    ) -> None:
        wrong = [name for name in TWICE if others.get(name)]
        if wrong:
            raise UsageError(f"elastic.DataLoader({wrong[0]}=...): the sampler decides about this; leave it out")
        if not isinstance(sampler, ElasticSampler):
            raise UsageError(f"sampler is a {type(sampler).__name__}: pass an ElasticSampler of this data set")
        if min(batch_size, global_batch_size + 1) < 1:
            raise UsageError(f"batch_size={batch_size}, global_batch_size={global_batch_size}: give one of them")
        if whole and not global_batch_size:
            raise UsageError("elastic.DataLoader(whole=True): with virtual workers a step has a global_batch_size")
        self._batches = _Batches(sampler, batch_size, global_batch_size, whole)
        others["generator"] = torch.Generator()  # else every iteration would take a number from the global one
        super().__init__(dataset, batch_sampler=self._batches, **others)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch names the class of its own iterators
        cursor = self._batches.elastic.cursor
        self.generator.manual_seed(hash((cursor.seed, cursor.epoch, cursor.position)) % 2**63)
        yield from cursor.hand_out_with(self._batches.plan(), super().__iter__())


class _Batches(Sampler[list[int]]):
    """The batches of this rank, from where the sampler's epoch is."""

    def __init__(self, sampler: ElasticSampler, batch_size: int, global_batch_size: int, whole: bool) -> None:
        self.elastic, self._whole = sampler, whole
        self._sizes = (batch_size, global_batch_size)

    def plan(self) -> list[GlobalBatch]:
        """Global batches that are left of this epoch."""
        return list(self.elastic.cursor.batches(*self._sizes))

    def __iter__(self) -> Iterator[list[int]]:
        cursor = self.elastic.cursor
        for batch in self.plan():
            rows = range(batch.start, batch.stop) if self._whole else batch.computed(cursor.rank, cursor.size)
            yield [cursor.indices[row] for row in rows]

    def __len__(self) -> int:
        return len(self.plan())
