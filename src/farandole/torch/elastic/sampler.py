"""``ElasticSampler``: the samples of an epoch, each of them once, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import Sampler

from farandole.elastic.worker.epoch_sampler import EpochSampler


class ElasticSampler(EpochSampler, Sampler[int]):
    """The indices of this rank among those of ``dataset`` that are not committed yet.

    >>> sampler = hvd.elastic.ElasticSampler(dataset)
    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
    >>> loader = hvd.elastic.DataLoader(dataset, batch_size=32, sampler=sampler)

    Register it with the state, and take the batches from ``hvd.elastic.DataLoader``: then the samples of a step count
    in the vote of the step, every sample of an epoch exactly once, and gradients are weighted by the number of samples
    where ranks have unequally many. With torch's own ``DataLoader`` call ``record_batch`` after each step, as for
    Horovod; where the number of ranks does not divide what is left, the last ranks then see one sample twice.
    The names are Horovod's. ``set_epoch`` begins an epoch, unless it is the one under way.
    """

    @staticmethod
    def _shuffled(length: int, seed: int, epoch: int) -> Sequence[int]:
        """Random order of an epoch, the same as that of torch's ``DistributedSampler``."""
        generator = torch.Generator()
        generator.manual_seed(seed + epoch)
        order: list[int] = torch.randperm(length, generator=generator).tolist()
        return order
