"""One job of ``test_bigearthnet_training``: ``farandole run -np N python train_on_ranks.py FOLDER``.

Rank 0 leaves ``N-W-how.pt`` for W workers: the state of the model after training them virtually, where there are as
many workers as ranks with nothing but what Horovod's users have, and on one rank in one pass.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import farandole.torch as hvd
from examples.bigearthnet.data import Data, synthetic
from examples.bigearthnet.grouped import grouped, in_one_pass
from examples.bigearthnet.metrics import MicroF1
from examples.bigearthnet.training import Plan, loading, make_optimizer, seeded_model, train


def plan(workers: int) -> Plan:
    """Two epochs of a few steps."""
    return Plan("sgd", workers, 6, base_lr=0.05, base_batch=6, epochs=2, warmup_epochs=1)


def virtually(workers: int, data: Data) -> dict[str, torch.Tensor]:
    """As the example trains; returns the model's state."""
    model = seeded_model(plan(workers), data)
    train(model, plan(workers), data)
    return model.state_dict()


def at_once(workers: int, data: Data) -> dict[str, torch.Tensor]:
    """As searches train: one worker, with batch normalization over what each of the others would have."""
    model = grouped(seeded_model(plan(workers), data), plan(workers).worker_batch)
    train(model, in_one_pass(plan(workers)), data)
    return model.state_dict()


def really(workers: int, data: Data) -> dict[str, torch.Tensor]:
    """As scripts for Horovod train: every rank has its batches, and its own statistics, averaged at the end."""
    how = plan(workers)
    model, schedule = seeded_model(how, data), how.recipe().schedule
    steps = how.steps(len(data.train))
    sampler, loader = loading(data.train, how, global_batch_size=how.global_batch)
    inner = make_optimizer(model, "sgd", how.recipe().settings)
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    rate = hvd.SamplesLR(optimizer, schedule, epoch_samples=steps * how.global_batch)
    for epoch in range(how.epochs):
        sampler.set_epoch(epoch)
        for _, (images, labels) in zip(range(steps), loader, strict=False):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(images), labels).backward()
            optimizer.step()
            rate.step()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            hvd.allreduce_(buffer, name=name)
    return model.state_dict()


def check_micro_f1() -> None:
    """The score is that of all decisions, however unevenly they lie, and NaN is no yes."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(40, 8, generator=generator)
    labels = (torch.rand(40, 8, generator=generator) < torch.linspace(0.05, 0.9, 40)[:, None]).float()
    logits[3, 2] = torch.nan
    ends = [40 * (rank * (rank + 1)) // (hvd.size() * (hvd.size() + 1)) for rank in range(hvd.size() + 1)]
    part = slice(ends[hvd.rank()], ends[hvd.rank() + 1])
    score = MicroF1()
    for piece in range(part.start, part.stop):
        score.add(logits[piece : piece + 1], labels[piece : piece + 1])
    yes = logits > 0
    expected = 2 * (yes * labels).sum() / (yes.sum() + labels.sum())
    assert abs(score.result() - float(expected)) < 1e-6
    right, wrong, missed = score.counts.tolist()
    of_ranks = hvd.allgather_object(2 * right / max(1, 2 * right + wrong + missed))
    assert hvd.size() == 1 or abs(sum(of_ranks) / hvd.size() - float(expected)) > 0.01  # a mean of means is another
    nothing = MicroF1()
    assert nothing.result() == 0.0


def main() -> None:
    """Train all there is to compare."""
    folder = Path(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    check_micro_f1()
    data = synthetic(100, 10, spectral_gap=1.0)
    for workers in (2, 4):
        if workers < hvd.size():
            continue
        states = {"virtual": virtually(workers, data)}
        if workers == hvd.size():
            states["real"] = really(workers, data)
        if hvd.size() == 1:
            states["one-pass"] = at_once(workers, data)
        for how, state in states.items():
            if hvd.rank() == 0:
                torch.save(state, folder / f"{hvd.size()}-{workers}-{how}.pt")


if __name__ == "__main__":
    main()
