"""One training of the small ResNet: on the ranks that there are, for as many workers as are asked for.

    plan = Plan("sgd", workers=32, worker_batch=8, base_lr=0.4, base_batch=16, epochs=16)
    model = seeded_model(plan, data)
    outcome = train(model, plan, data, after_epoch=lambda epoch, loss, f1: print(epoch, loss, f1))

``train.py`` is the script around it, and ``batch_table.py`` the experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import farandole.torch as hvd
from examples.bigearthnet.data import Data, Items
from examples.bigearthnet.metrics import MicroF1
from examples.bigearthnet.model import resnet
from examples.common.training import SEED_STRIDE, kept
from farandole.largebatch import Cosine, Recipe, recipe
from farandole.torch import optim

TEST_BATCH = 256

AfterEpoch = Callable[[int, float, float], None]
"""Is told, on every rank: how many epochs have passed, the mean training loss of the last one, F1 on the test data."""


@final
@dataclass(frozen=True)
class Plan:
    """What to train. ``base_lr`` was found good with steps of ``base_batch`` samples; the recipe makes more of it."""

    optimizer: str
    workers: int
    worker_batch: int
    base_lr: float
    base_batch: int
    epochs: int
    warmup_epochs: float | None = None
    """Instead of the recipe's."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Arguments of the optimizer, instead of the recipe's."""
    width: int = 8
    seed: int = 0
    loaders: int = 0
    """Threads per rank that read and decode ahead; without any the training loop does."""

    @property
    def global_batch(self) -> int:
        """Samples of one step, all workers together."""
        return self.workers * self.worker_batch

    def steps(self, samples: int) -> int:
        """Steps of an epoch; the last samples are left out if they do not fill one.

        Raises ``ValueError`` if there is not even one step, or ranks would differ in their share of it.
        """
        if samples < self.global_batch:
            raise ValueError(
                f"{samples} samples are less than one step of {self.workers} workers x {self.worker_batch}"
            )
        if self.workers % hvd.size():
            raise ValueError(f"{self.workers} workers on {hvd.size()} ranks: take a multiple of that, for equal shares")
        return samples // self.global_batch

    def recipe(self) -> Recipe:
        """Settings and schedule, with the reasons for them. All optimizers decay alike, to be comparable."""
        return recipe(
            self.optimizer,
            self.base_lr,
            base_batch=self.base_batch,
            global_batch=self.global_batch,
            epochs=self.epochs,
            warmup_epochs=self.warmup_epochs,
            decay=Cosine(),
        )


@final
@dataclass(frozen=True)
class Outcome:
    """What came of it: after every epoch the mean training loss and F1 on the test data, and how it was trained."""

    losses: list[float]
    scores: list[float]
    steps: int
    peak_lr: float
    kind: str
    """``real`` if every worker was a process of its own; ``accumulated`` if processes played several, in turns."""
    processes: int
    seconds: float

    @property
    def f1(self) -> float:
        """At the end."""
        return self.scores[-1]


def seeded_model(plan: Plan, data: Data) -> torch.nn.Module:
    """The network before training; another one for every seed."""
    torch.manual_seed(plan.seed)
    return resnet(classes=data.classes, width=plan.width)


def train(
    model: torch.nn.Module,
    plan: Plan,
    data: Data,
    after_epoch: AfterEpoch | None = None,
    *,
    checkpoints: str = "",
    ledger: str = "",
) -> Outcome:
    """Train as ``plan`` says. All ranks call it together, after ``hvd.init()``, and get the same losses and scores.

    In an elastic job ranks may come and go, as long as their number divides that of the workers. ``checkpoints``: a
    folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each rank writes down
    the samples that it trained on.
    """
    begin, found, steps = time.perf_counter(), plan.recipe(), plan.steps(len(data.train))
    sampler, loader = loading(data.train, plan, global_batch_size=plan.global_batch)
    optimizer = distributed(model, plan)
    schedule = hvd.SamplesLR(optimizer, found.schedule, epoch_samples=steps * plan.global_batch)
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, schedule=schedule, epoch=0, losses=[], scores=[]
    )
    with kept(hvd.Checkpoints, state, checkpoints, ledger) as (saving, _):

        @hvd.elastic.run
        def train_on(state: Any) -> None:
            plan.steps(len(data.train))  # raises if the ranks there are now cannot share the workers
            while state.epoch < plan.epochs:
                loss = train_epoch(model, plan, optimizer, schedule, loader, state)
                state.losses = [*state.losses, loss]
                state.scores = [*state.scores, micro_f1(model, data.test, plan)]
                state.epoch += 1
                if after_epoch is not None:
                    after_epoch(state.epoch, state.losses[-1], state.scores[-1])
                if saving is not None:
                    saving.save(state.epoch, state.state_dict())

        train_on(state)
    kind = "real" if plan.workers == hvd.size() else "accumulated"
    seconds = time.perf_counter() - begin
    return Outcome(state.losses, state.scores, plan.epochs * steps, found.peak_lr, kind, hvd.size(), seconds)


def distributed(model: torch.nn.Module, plan: Plan) -> Any:
    """The optimizer of a plan, for all of its workers."""
    return hvd.DistributedOptimizer(
        make_optimizer(model, plan.optimizer, {**plan.recipe().settings, **plan.settings}),
        named_parameters=model.named_parameters(),
        virtual_workers=hvd.VirtualWorkers(plan.workers, model, seed=plan.seed),
    )


def train_epoch(
    model: torch.nn.Module, plan: Plan, optimizer: Any, schedule: Any, loader: hvd.elastic.DataLoader, state: Any
) -> float:
    """Train on what is left of the epoch of ``state``; the mean loss since ranks have last changed."""
    state.sampler.set_epoch(state.epoch)
    left = plan.steps(state.sampler.cursor.length) - state.sampler.processed_num // plan.global_batch
    total = torch.zeros(())
    for _, (images, labels) in zip(range(left), loader, strict=False):  # this rank's part of each step
        parts = zip(images.split(plan.worker_batch), labels.split(plan.worker_batch), strict=True)
        for _, (x, y) in zip(optimizer.shards(plan.global_batch), parts, strict=True):
            loss = binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        schedule.step()
        state.commit()
    return float(hvd.allreduce(total / max(1, left * plan.workers // hvd.size()), name="loss"))


def loading(items: Items, plan: Plan, **size: int) -> tuple[hvd.elastic.ElasticSampler, hvd.elastic.DataLoader]:
    """Loader of what this rank has of each batch, and the sampler that orders an epoch, alike on all ranks.

    Raises ``ValueError`` where some rank would have nothing.
    """
    if len(items) < hvd.size():
        raise ValueError(f"{len(items)} samples are too few for {hvd.size()} ranks: take fewer ranks, or more samples")
    sampler = hvd.elastic.ElasticSampler(items, seed=SEED_STRIDE * plan.seed)
    return sampler, hvd.elastic.DataLoader(items, **size, sampler=sampler, threads=plan.loaders)


def make_optimizer(model: torch.nn.Module, name: str, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer of a recipe. None decays biases and batch norm, and none gives them a rate by layer."""
    if name == "sgd":
        flat = [p for p in model.parameters() if p.dim() < 2]
        weights = [p for p in model.parameters() if p.dim() >= 2]
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": flat, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, **settings)
    layerwise: dict[str, type[torch.optim.Optimizer]] = {"lars": optim.LARS, "lamb": optim.LAMB}
    return layerwise[name](model.parameters(), **settings)


@torch.no_grad()
def micro_f1(model: torch.nn.Module, test: Items, plan: Plan) -> float:
    """F1 on the test data, of which every rank looks at its part."""
    model.eval()
    score = MicroF1()
    for images, labels in loading(test, plan, batch_size=TEST_BATCH)[1]:
        score.add(model(images), labels)
    model.train()
    return score.result()
