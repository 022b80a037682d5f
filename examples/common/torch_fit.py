"""``fit``: an elastic training in PyTorch by a step of yours, on any data set that ``farandole.data`` loads.

def step(state, batch):
    optimizer.zero_grad()
    loss = cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return [float(loss.detach())]

fit(step, source, {"model": model, "optimizer": optimizer}, epochs=10, global_batch=64)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import farandole.torch as hvd
from examples.common.training import SEED_STRIDE, kept


def fit(
    step: Callable[[Any, Any], Sequence[float]],
    source: hvd.data.Source,
    keep: Mapping[str, Any],
    *,
    epochs: int,
    global_batch: int,
    seed: int = 0,
    losses: int = 1,
    augment: Sequence[Any] = (),
    after_epoch: Callable[[Any, list[float]], object] = lambda state, means: None,  # noqa: ARG005 (nothing to say)
    checkpoints: str = "",
    ledger: str = "",
) -> Any:
    """Train, and return the elastic state. All ranks call it together, after ``hvd.init()``.

    ``step`` trains on this rank's part of a global batch, and returns so many ``losses``. ``keep``: what the state has
    beside ``sampler`` and ``epoch``: models, optimizers, and whatever else a training must not lose. ``augment``: steps
    of ``hvd.data.augment``. ``after_epoch`` is told, on every rank, the state, and the mean losses of the last epoch.
    ``checkpoints``: a folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each
    worker writes down what it has computed.
    """
    items: Any = source  # torch's loader says that it wants a Dataset, and needs what a Source has
    sampler = hvd.elastic.ElasticSampler(items, seed=SEED_STRIDE * seed)
    loader = hvd.elastic.DataLoader(items, global_batch_size=global_batch, sampler=sampler, threads=1, augment=augment)
    begun: Any = hvd.elastic.TorchState(**keep, sampler=sampler, epoch=0)
    with kept(hvd.Checkpoints, begun, checkpoints, ledger) as (saving, _):

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.epoch < epochs:
                sampler.set_epoch(state.epoch)
                total = torch.zeros(1 + losses)
                for batch in loader:
                    samples = len(sampler.cursor.own_indices())  # 0 where the last batch has less than one for each
                    total += samples * torch.tensor([1.0, *step(state, batch)])
                    state.commit()
                seen, *sums = hvd.allreduce(total, name="losses", op=hvd.Sum).tolist()
                state.epoch += 1
                after_epoch(state, [each / max(1.0, seen) for each in sums])
                if saving is not None:
                    saving.save(state.epoch, state.state_dict())

        train(begun)
    return begun
