"""Which samples each worker trains on, virtual or real.

shares = Shares(len(data), workers=128, worker_batch=8, seed=1)     # steps of 1024 samples
loader = DataLoader(data, batch_sampler=shares)                     # this rank's batches, one per worker that it plays
for shard, (images, labels) in zip(optimizer.shards(shares.global_batch), batches):
    ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch.utils.data import Sampler

import farandole.torch as hvd


@final
class Shares(Sampler[list[int]]):
    """Every epoch is shuffled anew, alike on all ranks, cut into global batches, and these among the workers.

    Worker *w* has samples w x worker_batch to (w + 1) x worker_batch - 1 of every step, on whatever rank it is played:
    as ``optimizer.shards`` deals them out, equally many to all ranks. The last samples of an epoch are left out if they
    do not fill a step. Raises ``ValueError`` if an epoch has not even one step, or ranks would differ in their share.
    """

    def __init__(self, samples: int, *, workers: int, worker_batch: int, seed: int) -> None:
        super().__init__()
        self.samples, self.workers, self.worker_batch, self.seed, self.epoch = samples, workers, worker_batch, seed, 0
        self.global_batch = workers * worker_batch
        self.steps = samples // self.global_batch
        if not self.steps:
            raise ValueError(f"{samples} samples are less than one step of {workers} workers x {worker_batch} samples")
        if workers % hvd.size():
            raise ValueError(f"{workers} workers on {hvd.size()} ranks: take a multiple of that, for equal shares")

    def __len__(self) -> int:
        return self.steps * self.workers // hvd.size()

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(self.samples, generator=generator)[: self.steps * self.global_batch]
        mine = order.reshape(self.steps, hvd.size(), -1, self.worker_batch)[:, hvd.rank()]
        return iter(mine.flatten(0, 1).tolist())

    def set_epoch(self, epoch: int) -> None:
        """Which epoch's order comes next."""
        self.epoch = epoch
