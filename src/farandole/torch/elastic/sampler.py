"""``ElasticSampler``: the samples of an epoch, each of them once, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from farandole.elastic.worker.sampler import SampleCursor, sequential
from farandole.runtime.session.init import current, is_initialized


class ElasticSampler(Sampler[int]):
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

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.cursor = SampleCursor(len(dataset), _permutation if shuffle else sequential, seed)
        self.reset()

    @property
    def epoch(self) -> int:
        """The number of the epoch under way."""
        return self.cursor.epoch

    @property
    def rank(self) -> int:
        """The rank that the indices are for."""
        return self.cursor.rank

    @property
    def num_replicas(self) -> int:
        """Number of ranks that the indices are shared out among."""
        return self.cursor.size

    @property
    def processed_num(self) -> int:
        """Number of samples of this epoch that all ranks together have committed."""
        return self.cursor.position

    @property
    def remaining_indices(self) -> Sequence[int]:
        """The indices of this epoch that are not committed."""
        return self.cursor.remaining

    @property
    def num_samples(self) -> int:
        """Number of indices that this rank gets when it begins now."""
        return -(-(self.cursor.length - self.cursor.position) // self.cursor.size)

    @property
    def total_size(self) -> int:
        """Number of indices that all ranks together get; ``num_samples`` times their number."""
        return self.num_samples * self.cursor.size

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with all of its samples; where it is under way, it goes on with those that are left."""
        self.cursor.set_epoch(epoch)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has used ``batch_size`` samples of its own; not for batches of ``hvd.elastic.DataLoader``."""
        self.cursor.record(batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position in it, for ``load_state_dict`` at any number of ranks."""
        return self.cursor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a position. Raises ``ValueError`` for the state of another data set."""
        self.cursor.load_state_dict(state_dict)

    def reset(self) -> None:
        """Share out what is left among the ranks there are now; a registered sampler need not be told."""
        if is_initialized():
            topology = current().topology
            self.cursor.rearrange(topology.rank, topology.size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.cursor.strided())

    def __len__(self) -> int:
        return self.num_samples


def _permutation(length: int, seed: int, epoch: int) -> Sequence[int]:
    """Random order of an epoch, the same as that of torch's ``DistributedSampler``."""
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order
