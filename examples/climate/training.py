"""One training: a network and its weighting, its optimizer and its lag, on the ranks that there are.

    plan = Plan(model="tiramisu", weighting="none", epochs=10)
    outcome = train(plan, load(folder, "train"), load(folder, "validation"))
    outcome.iou                                                 # of each class, the same on all ranks

``train.py`` is the script around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import farandole.torch as hvd
from examples.climate.deeplab import DeepLab
from examples.climate.files import frequencies
from examples.climate.labels import CLASSES
from examples.climate.metrics import counts, iou
from examples.climate.tiramisu import Tiramisu
from examples.common.training import SEED_STRIDE, kept
from farandole.largebatch import Cosine, Schedule
from farandole.torch import optim

MODELS: dict[str, type[nn.Module]] = {"tiramisu": Tiramisu, "deeplab": DeepLab}
WEIGHTINGS = {"none": 0.0, "sqrt": -0.5, "inverse": -1.0}
"""Power of a class's frequency that weighs its pixels."""

TURNED = hvd.data.augment.Roll(axes=(-1,), fields=(0, 1))
"""Augmentation: the same state and labels from another longitude."""

AfterEpoch = Callable[[int, float, float], None]
"""Is told, on every rank: how many epochs have passed, the mean loss of the last one, mean IoU on the other states."""


@final
@dataclass(frozen=True)
class Plan:
    """What to train. ``batch``: states of a step, all ranks together; ``lag``: by how many steps gradients are late."""

    model: str = "tiramisu"
    weighting: str = "none"
    lag: int = 0
    larc: bool = False
    epochs: int = 10
    batch: int = 4
    seed: int = 0

    def network(self, channels: int, prior: torch.Tensor) -> nn.Module:
        """The network before training. Its first answers are near ``prior``, the weighted shares of the classes."""
        torch.manual_seed(self.seed)
        model: Any = MODELS[self.model](channels, len(CLASSES))
        with torch.no_grad():
            model.head[-1].bias.copy_(prior.log())
        return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return]

    def weights(self, shares: torch.Tensor) -> torch.Tensor:
        """What a pixel of each class counts for; 1 in the mean of the pixels."""
        found = shares ** WEIGHTINGS[self.weighting]
        return found / (found * shares).sum()

    def schedule(self) -> Schedule:
        """From the highest rate down to 0 along a cosine."""
        return Schedule(self.rate, self.batch, self.batch, self.epochs, decay=Cosine())

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return 0.5 if self.larc else 0.004

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam; or momentum under layer-wise rates: LARC, with the coefficient of Kurth et al. 2018."""
        if self.larc:
            momentum = torch.optim.SGD(model.parameters(), self.rate, momentum=0.9)
            return optim.LARC(momentum, trust_coefficient=0.002)
        return torch.optim.Adam(model.parameters(), self.rate)


@final
@dataclass(frozen=True)
class Outcome:
    """Loss and IoU of each class after each epoch, and the trained network."""

    losses: list[float]
    ious: list[list[float]]
    model: nn.Module = field(repr=False)

    @property
    def iou(self) -> list[float]:
        """Of each class, at the end."""
        return self.ious[-1]

    @property
    def scores(self) -> list[float]:
        """Mean IoU after each epoch."""
        return [sum(each) / len(each) for each in self.ious]


def train(
    plan: Plan,
    states: hvd.data.Source,
    others: hvd.data.Source,
    after_epoch: AfterEpoch | None = None,
    *,
    checkpoints: str = "",
    ledger: str = "",
) -> Outcome:
    """Train, and measure on ``others`` after each epoch. All ranks call it together, and get the same.

    In an elastic job ranks may come and go. ``checkpoints``: folder for one after each epoch, from which a later job
    goes on; ``ledger``: folder for a record of which rank trained on which states.
    """
    shares = torch.tensor(hvd.broadcast_object(frequencies(states) if hvd.rank() == 0 else None, root_rank=0))
    weights = plan.weights(shares)
    model = plan.network(len(states[0][0]), shares * weights)
    items: Any = states  # torch's loader says that it wants a Dataset, and needs what a Source has
    sampler = hvd.elastic.ElasticSampler(items, seed=SEED_STRIDE * plan.seed)
    loader = hvd.elastic.DataLoader(items, global_batch_size=plan.batch, sampler=sampler, threads=1, augment=[TURNED])
    distributed = hvd.DistributedOptimizer(plan.optimizer(model), named_parameters=model.named_parameters())
    optimizer: Any = optim.GradientLag(distributed, plan.lag)
    rates = hvd.SamplesLR(optimizer, plan.schedule(), epoch_samples=len(states))
    state: Any = hvd.elastic.TorchState(model, optimizer, sampler=sampler, rates=rates, epoch=0, losses=[], iou=[])
    with kept(hvd.Checkpoints, state, checkpoints, ledger) as (saving, _):

        @hvd.elastic.run
        def train_on(state: Any) -> None:
            while state.epoch < plan.epochs:
                sampler.set_epoch(state.epoch)
                state.losses = [*state.losses, pass_over(loader, state, weights)]
                state.iou = [*state.iou, evaluated(model, others)]
                state.epoch += 1
                if after_epoch is not None:
                    after_epoch(state.epoch, state.losses[-1], sum(state.iou[-1]) / len(CLASSES))
                if saving is not None:
                    saving.save(state.epoch, state.state_dict())

        train_on(state)
    return Outcome(state.losses, state.iou, model)


def pass_over(loader: hvd.elastic.DataLoader, state: Any, weights: torch.Tensor) -> float:
    """Train on what is left of an epoch; the mean loss over its states, on all ranks."""
    total = torch.zeros(2)
    for images, labels in loader:
        state.optimizer.zero_grad()
        loss = loss_of(state.model, images, labels, weights)
        loss.backward()
        state.optimizer.step()
        state.rates.step()
        total += torch.tensor([float(loss.detach()) * len(images), len(images)])
        state.commit()
    summed, seen = hvd.allreduce(total, name="loss", op=hvd.Sum).tolist()
    return float(summed / max(1.0, seen))


def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over all pixels of their cross entropy times the weight of their class."""
    scores = model(images.to(memory_format=torch.channels_last))
    return (cross_entropy(scores, labels, reduction="none") * weights[labels]).mean()


@torch.no_grad()
def evaluated(model: nn.Module, others: hvd.data.Source) -> list[float]:
    """IoU of each class; every rank looks at its part of the states, and counts are added."""
    total = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.int64)
    for number in range(hvd.rank(), len(others), hvd.size()):
        image, labels = map(torch.from_numpy, others[number])
        total += counts(model(image[None].to(memory_format=torch.channels_last)).argmax(1), labels)
    return iou(hvd.allreduce(total, name="pixels", op=hvd.Sum).tolist())
