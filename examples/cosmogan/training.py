"""One elastic training of generator and discriminator: two distributed optimizers, in one loop.

generator = train(Plan(epochs=78), source, after_epoch=print)
maps = generated(generator, 1000, seed=0)

The noise of a map follows from the seed, the epoch and its place in the global batch, so any number of workers trains
on the same. ``train.py`` is the script around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim.swa_utils import update_bn

import farandole.torch as hvd
from examples.common.training import SEED_STRIDE, kept
from examples.common.volumes import Array
from examples.cosmogan.maps import augmentation
from examples.cosmogan.model import LATENT, Discriminator, Generator, average, untrained
from farandole.elastic.worker.sampler import GlobalBatch

AfterEpoch = Callable[[int, float, float], object]


@final
@dataclass(frozen=True)
class Plan:
    """What to train: two rates (Heusel et al. 2017, arXiv 1706.08500), and what the mean keeps.

    ``keep``: part of the mean weights that a step leaves; before the hundredth they are the mean of all steps.
    """

    epochs: int = 78
    global_batch: int = 64
    generator_rate: float = 4e-4
    discriminator_rate: float = 8e-4
    betas: tuple[float, float] = (0.0, 0.9)
    keep: float = 0.99
    width: int = 16
    seed: int = 0


def noises(plan: Plan, epoch: int, batch: GlobalBatch) -> list[torch.Tensor]:
    """Noise of this rank's part of a global batch: for the discriminator's step, and for the generator's."""
    rng = np.random.default_rng([plan.seed, epoch, batch.start])
    both = torch.from_numpy(rng.standard_normal((2, batch.samples, LATENT), np.float32))
    return [each[[row - batch.start for row in batch.computed(hvd.rank(), hvd.size())]] for each in both]


def train(
    plan: Plan, source: hvd.data.Source, after_epoch: AfterEpoch, *, checkpoints: str = "", ledger: str = ""
) -> Generator:
    """The generator with averaged weights. All ranks call it together, after ``hvd.init()``.

    ``after_epoch`` is told, on every rank: how many epochs have passed, mean losses of discriminator and generator.
    ``checkpoints``: a folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each
    worker writes down what it has computed.
    """
    generator, mean, discriminator = untrained(plan.seed, hvd.SyncBatchNorm, plan.width)
    adam_g = adam(generator, plan.generator_rate, plan, "generator")
    adam_d = adam(discriminator, plan.discriminator_rate, plan, "discriminator")
    items: Any = source
    sampler = hvd.elastic.ElasticSampler(items, seed=SEED_STRIDE * plan.seed)
    loader = hvd.elastic.DataLoader(
        items, global_batch_size=plan.global_batch, sampler=sampler, threads=1, augment=augmentation()
    )
    state: Any = hvd.elastic.TorchState(
        generator=generator, mean=mean, discriminator=discriminator, adam_g=adam_g, adam_d=adam_d, sampler=sampler,
        epoch=0, steps=0,
    )  # fmt: skip
    with kept(hvd.Checkpoints, state, checkpoints, ledger) as (saving, _):

        @hvd.elastic.run
        def elastic(state: Any) -> None:
            while state.epoch < plan.epochs:
                sampler.set_epoch(state.epoch)
                losses = torch.zeros(3)
                for real in loader:
                    noise = noises(plan, state.epoch, sampler.cursor.in_flight[-1])
                    loss_d, loss_g = two_steps(generator, discriminator, (adam_g, adam_d), real, noise)
                    average(mean, generator, min(plan.keep, state.steps / (state.steps + 1)))
                    state.steps += 1
                    losses += torch.tensor([loss_d, loss_g, 1.0])
                    state.commit()
                state.epoch += 1
                said = hvd.allreduce(losses[:2] / losses[2].clamp(min=1), name="losses")
                after_epoch(state.epoch, *said.tolist())
                if saving is not None:
                    saving.save(state.epoch, state.state_dict())
            drawn = np.random.default_rng([plan.seed, 4]).standard_normal((40, 100, LATENT), np.float32)
            update_bn(torch.from_numpy(drawn), mean)  # mean weights have statistics of their own

        elastic(state)
    return mean


def adam(model: nn.Module, rate: float, plan: Plan, name: str) -> Any:
    """Distributed optimizer of one of the two networks."""
    named = [(f"{name}.{each}", parameter) for each, parameter in model.named_parameters()]
    own = torch.optim.Adam(model.parameters(), rate, betas=plan.betas)
    return hvd.DistributedOptimizer(own, named_parameters=named)


def two_steps(
    generator: Generator, discriminator: Discriminator, adams: tuple[Any, Any], real: torch.Tensor, noise: Any
) -> tuple[float, float]:
    """A step of the discriminator, and one of the generator; their losses, cross entropies of logits."""
    adam_g, adam_d = adams
    discriminator.requires_grad_(True)  # here: a step of the generator may have ended by an error
    adam_d.zero_grad()
    with torch.no_grad():
        made = generator(noise[0])
    loss_d = softplus(-discriminator(real)).mean() + softplus(discriminator(made)).mean()
    loss_d.backward()
    adam_d.step()
    discriminator.requires_grad_(False)  # the generator's loss goes through it, and must not be reduced into it
    adam_g.zero_grad()
    loss_g = softplus(-discriminator(generator(noise[1]))).mean()
    loss_g.backward()
    adam_g.step()
    return float(loss_d.detach()), float(loss_g.detach())


@torch.no_grad()
def generated(generator: nn.Module, count: int, seed: int) -> Array:
    """Maps, float32, count x rows x columns, -1 to 1."""
    generator.eval()
    noise = np.random.default_rng([seed, 3]).standard_normal((count, LATENT), np.float32)
    made = [generator(each) for each in torch.from_numpy(noise).split(250)]
    generator.train()
    return torch.cat(made)[:, 0].numpy()
