"""``ElasticSampler``: each sample of an epoch exactly once, even if workers join and leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import Sampler

from farandole.elastic.worker.epoch_sampler import EpochSampler


class ElasticSampler(EpochSampler, Sampler[int]):
    """Indices for this rank among the samples of ``dataset`` that are not committed yet.

    >>> sampler = hvd.elastic.ElasticSampler(dataset)
    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
    >>> loader = hvd.elastic.DataLoader(dataset, batch_size=32, sampler=sampler)

    Register the sampler with the state, and take batches from ``hvd.elastic.DataLoader``. Then the vote of a step
    counts its samples, every sample of an epoch exactly once, and gradients are weighted by the number of samples if it
    differs between ranks. With torch's own ``DataLoader`` call ``record_batch`` after each step, as for Horovod; if the
    number of ranks does not divide the remaining samples, the last ranks then see one sample twice.
    The names are Horovod's. ``set_epoch`` begins an epoch, unless it is the current one.
    """

    @staticmethod
    def _shuffled(length: int, seed: int, epoch: int) -> Sequence[int]:
        """Random order of an epoch, equal to the order of torch's ``DistributedSampler``."""
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        order: list[int] = torch.randperm(length, generator=generator).tolist()
        return order
