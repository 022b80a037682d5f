"""Train the networks of ``examples/cosmogan`` on the ranks that there are: ``train_cosmogan.py DATA RESULT``.

Rank 0 writes what came of it, and alone what plain PyTorch comes to with the same global batches and noise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

import farandole.torch as hvd
from examples.common.training import SEED_STRIDE
from examples.cosmogan.maps import augmentation, maps
from examples.cosmogan.model import LATENT, untrained
from examples.cosmogan.training import Plan, train
from farandole.data.loading.augment import SampleLoader
from farandole.data.planning.order import ExactOrder

PLAN = Plan(epochs=2, global_batch=32, width=4, seed=3)  # of 80 maps: the last batch has 16


def alone(source: hvd.data.Source) -> dict[str, torch.Tensor]:
    """One process that knows nothing of ranks; mean weights of the generator, and a statistic of it with these."""
    generator, _, discriminator = untrained(PLAN.seed, nn.BatchNorm2d, PLAN.width)
    adam_g = torch.optim.Adam(generator.parameters(), PLAN.generator_rate, betas=PLAN.betas)
    adam_d = torch.optim.Adam(discriminator.parameters(), PLAN.discriminator_rate, betas=PLAN.betas)
    load = SampleLoader(source, augmentation(), SEED_STRIDE * PLAN.seed)
    means, step = {name: value.detach().clone() for name, value in generator.named_parameters()}, 0
    for epoch in range(PLAN.epochs):
        order = [int(row) for row in ExactOrder(len(source), SEED_STRIDE * PLAN.seed, epoch)]
        for start in range(0, len(order), PLAN.global_batch):
            rows = order[start : start + PLAN.global_batch]
            real = torch.from_numpy(np.stack([load(epoch, row) for row in rows]))
            drawn = np.random.default_rng([PLAN.seed, epoch, start]).standard_normal((2, len(rows), LATENT), np.float32)
            first, second = torch.from_numpy(drawn)
            adam_d.zero_grad()
            loss = softplus(-discriminator(real)).mean() + softplus(discriminator(generator(first).detach())).mean()
            loss.backward()
            adam_d.step()
            adam_g.zero_grad()
            softplus(-discriminator(generator(second))).mean().backward()
            adam_g.step()
            step += 1
            for name, value in generator.named_parameters():  # fewer than a hundred steps: their mean
                means[name] = means[name] + (value.detach() - means[name]) / step
    drawn = np.random.default_rng([PLAN.seed, 4]).standard_normal((4000, LATENT), np.float32)
    first = (torch.from_numpy(drawn) @ means["first.weight"].T).view(4000, -1, 16)
    return {**means, "norms.0.running_mean": first.mean(dim=(0, 2))}


def main(folder: str, result: str) -> None:
    """Train, and write it down."""
    hvd.init()
    torch.set_num_threads(1)
    source, losses = maps(Path(folder) / "train.npy"), list[list[float]]()
    found: dict[str, Any] = dict(train(PLAN, source, lambda _, *each: losses.append([*each])).state_dict())
    if hvd.rank() == 0:
        plain = {f"plain-{name}": value for name, value in alone(source).items()}
        arrays = {name: value.detach().numpy() for name, value in {**found, **plain}.items()}
        np.savez(result, losses=losses, **arrays)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
