r"""Train a network that marks tropical cyclones and atmospheric rivers in states of the atmosphere.

    farandole run -np 2 python -m examples.climate.train
    farandole run -np 2 python -m examples.climate.train --model deeplab --weighting 0.5 --lag 1 --larc
    farandole run -np 2 --min-np 1 --max-np 4 python -m examples.climate.train --checkpoints runs/climate   # elastic
    farandole run -np 64 -H a:8,b:8,... python -m examples.climate.train --data /lustre/deepcam --stage --limit 500GB

Without --data states are made in out/ first. --data names a folder as DeepCAM's, with train/, validation/ and stats.h5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from examples.climate.files import load, write
from examples.climate.networks import deeplab, tiramisu
from examples.climate.weather import CLASSES, Array
from examples.common.torch_fit import fit
from examples.common.training import EpochBar, made_once, options
from farandole.largebatch import Cosine, Schedule
from farandole.torch import optim

MODELS: dict[str, Callable[[int, int], nn.Sequential]] = {"tiramisu": tiramisu, "deeplab": deeplab}


@final
@dataclass(frozen=True)
class Plan:
    """What to train. A pixel weighs its class's share of all to the power of -``weighting``; ``lag``: of gradients."""

    model: str = "tiramisu"
    weighting: float = 0.0
    lag: int = 0
    larc: bool = False
    epochs: int = 10
    batch: int = 4
    seed: int = 0

    def weights(self, shares: torch.Tensor) -> torch.Tensor:
        """What a pixel of each class counts for; 1 in the mean of the pixels."""
        found = shares**-self.weighting
        return found / (found * shares).sum()

    def network(self, channels: int, prior: torch.Tensor) -> nn.Module:
        """The network before training. Its first answers are near ``prior``, the weighted shares of the classes."""
        torch.manual_seed(self.seed)
        model: Any = MODELS[self.model](channels, len(prior))
        model[-1].bias.data.copy_(prior.log())
        return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def optimizer(self, model: nn.Module) -> Any:
        """Adam; or momentum under layer-wise rates: LARC, with the coefficient of Kurth et al. 2018."""
        chosen: Any = torch.optim.Adam(model.parameters(), 0.004)
        if self.larc:
            chosen = optim.LARC(torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), trust_coefficient=0.002)
        return optim.GradientLag(hvd.DistributedOptimizer(chosen, named_parameters=model.named_parameters()), self.lag)


def train(plan: Plan, states: hvd.data.Source, others: hvd.data.Source, bar: EpochBar | None = None, **how: Any) -> Any:
    """Train on all ranks, and measure on ``others`` after each epoch: the state. ``how``: what else ``fit`` takes."""
    torch.set_num_threads(1)
    some = range(0, len(states), max(1, len(states) // 64))
    pixels = np.sum([np.bincount(states[number][1].ravel(), minlength=len(CLASSES)) for number in some], 0).clip(1)
    shares = torch.tensor(pixels / pixels.sum(), dtype=torch.float32)
    weights = plan.weights(shares)
    model = plan.network(len(states[0][0]), shares * weights)
    optimizer = plan.optimizer(model)
    falling = Schedule(optimizer.param_groups[0]["lr"], plan.batch, plan.batch, plan.epochs, decay=Cosine())
    rates = hvd.SamplesLR(optimizer, falling, epoch_samples=len(states))

    def step(_: Any, batch: Any) -> list[float]:
        images, labels = batch
        optimizer.zero_grad()
        loss = (cross_entropy(model(images), labels, reduction="none") * weights[labels]).mean()
        loss.backward()
        optimizer.step()
        rates.step()
        return [float(loss.detach())]

    def after_epoch(state: Any, losses: list[float]) -> None:
        state.losses, state.ious = [*state.losses, *losses], [*state.ious, evaluated(partial(said, model), others)]
        if bar is not None:
            bar.update(state.epoch, f"loss {losses[0]:.4f} mean IoU {np.mean(state.ious[-1]):.3f}")

    keep = {"model": model, "optimizer": optimizer, "rates": rates, "losses": [], "ious": []}
    how |= {"epochs": plan.epochs, "global_batch": plan.batch, "seed": plan.seed, "after_epoch": after_epoch}
    turned = hvd.data.augment.Roll(axes=(-1,), fields=(0, 1))  # the same state and labels from another longitude
    return fit(step, states, keep, augment=[turned], **how)


@torch.no_grad()
def said(model: nn.Module, image: Array) -> Array:
    """The class of every pixel."""
    return model(torch.from_numpy(image)[None]).argmax(1)[0].numpy()  # type: ignore[no-any-return]


def evaluated(predict: Callable[[Array], Array], states: hvd.data.Source) -> list[float]:
    """IoU of each class, 1 where nobody sees it; every rank looks at its part of the states, and counts are added."""
    pixels = torch.zeros(2, len(CLASSES), dtype=torch.int64)
    for number in range(hvd.rank(), len(states), hvd.size()):
        image, labels = states[number]
        found, true = (np.arange(len(CLASSES)) == each.reshape(-1, 1) for each in (predict(image), labels))
        pixels += torch.from_numpy(np.stack([found & true, found | true]).sum(1))
    both, either = hvd.allreduce(pixels, name="pixels", op=hvd.Sum)
    return torch.where(either > 0, both / either, 1.0).tolist()


def main() -> None:
    """Parse, train, and say how it went; rank 0 speaks."""
    parser = options(__doc__, epochs=10)
    parser.add_argument("--model", choices=tuple(MODELS), default="tiramisu")
    parser.add_argument("--weighting", type=float, default=0.0, help="classes by 1/f to this power (DeepCAM: 0.125)")
    parser.add_argument("--lag", type=int, default=0, help="by how many steps gradients are late")
    parser.add_argument("--larc", action="store_true", help="layer-wise rates, in place of Adam")
    parser.add_argument("--global-batch", type=int, default=4)
    parser.add_argument("--form", choices=("hdf5", "netcdf"), default="hdf5", help="of states that are made")
    asked = parser.parse_args()
    hvd.init()
    plan = Plan(asked.model, asked.weighting, asked.lag, asked.larc, asked.epochs, asked.global_batch, asked.seed)
    sizes = (24, 8) if asked.quick else (200, 40)
    name = f"climate-{asked.form}-{sizes[0]}-{asked.seed}"
    folder = made_once(asked.data, name, hvd, lambda made: write(made, sizes, asked.seed, asked.form))
    states, others = (load(folder, part, asked.stage, asked.limit) for part in ("train", "validation"))
    with EpochBar(plan.epochs, shown=hvd.rank() == 0) as bar:
        state = train(plan, states, others, bar, checkpoints=asked.checkpoints, ledger=asked.ledger)
        each = ", ".join(f"{name} {value:.3f}" for name, value in zip(CLASSES, state.ious[-1], strict=True))
        bar.print(f"mean IoU {np.mean(state.ious[-1]):.4f} on other states: {each}")
        bar.print(hvd.data.report())  # of all ranks, which make it together


if __name__ == "__main__":
    main()
