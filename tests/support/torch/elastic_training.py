"""A training of an elastic job, for tests: ``python elastic_training.py FOLDER PLAN``; ``Plan`` says what happens.

Its steps do not depend on who takes part: global batches are fixed, there is nothing random in the model, and what is
drawn beside it is the same on all ranks. So the oracle, ``undisturbed``, is one process that knows nothing of this.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import msgspec
import torch

import farandole.torch as hvd
from farandole.elastic.worker.step_vote import Meet, StepVote
from farandole.errors import AbortError
from farandole.runtime.session.init import current
from farandole.testing.faults import Fault, inject
from farandole.testing.ledger import Ledger, Voted, read
from farandole.torch.elastic.sampler import ElasticSampler

LENGTH, GLOBAL_BATCH = 50, 8
UNHURRIED_S = 0.05
"""Pause of a step while another worker is awaited, who needs the processor to load PyTorch."""
GROWTH = 5


class Plan(msgspec.Struct, frozen=True):
    """``epochs`` are trained, and as many more as it takes until a later generation has trained ``until_size`` ranks.

    ``commit_every`` steps workers may come and go; ``loaders`` are processes that prepare batches. Rank 1 does not see
    the end of the vote of step ``torn``, which the others do. ``replicas`` of each part of the optimizer's state are
    kept; 0: every rank keeps the whole.
    """

    faults: list[Fault] = []
    epochs: int = 2
    until_size: int = 0
    commit_every: int = 1
    loaders: int = 0
    torn: int = -1
    replicas: int = 0


class Expected(msgspec.Struct, frozen=True):
    """What one process that trains alone has after as many epochs."""

    parameters: list[list[float]]
    rate: float
    scale: float
    draws: list[float]


class Result(msgspec.Struct, frozen=True):
    """What a worker has in the end."""

    rank: int
    steps: int
    epochs: int
    parameters: list[list[float]]
    rate: float
    scale: float
    draws: list[float]
    restarts: int
    eaten: int
    expected: Expected


class Samples(torch.utils.data.Dataset[Any]):
    """Small, and different."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / LENGTH, (index * 7 % LENGTH) / LENGTH, 1.0], dtype=torch.float64)
        return x, (x.sum() * 2).reshape(1)


def model_and_more(distribute: Callable[..., Any] = lambda optimizer: optimizer) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, scheduler and scaler."""
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    optimizer = distribute(torch.optim.Adam(model.parameters(), lr=0.05))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_factor=1.01, growth_interval=GROWTH)
    torch.manual_seed(5)
    return model, optimizer, scheduler, scaler


def undisturbed(epochs: int) -> Expected:
    """Train alone, with nothing but torch."""
    model, optimizer, scheduler, scaler = model_and_more()
    samples, draws = Samples(), []
    sampler = ElasticSampler(samples, seed=3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        order = sampler.remaining_indices
        for start in range(0, LENGTH, GLOBAL_BATCH):
            xs, ys = zip(*[samples[i] for i in order[start : start + GLOBAL_BATCH]], strict=True)
            draws.append(torch.rand(1).item())
            optimizer.zero_grad()
            scaler.scale(torch.nn.functional.mse_loss(model(torch.stack(xs)), torch.stack(ys))).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    parameters = [p.flatten().tolist() for p in model.parameters()]
    return Expected(parameters, scheduler.get_last_lr()[0], scaler.get_scale(), draws)


def tear(step_vote: StepVote, step: int, folder: str) -> None:
    """Have rank 1 miss the end of a vote."""
    cast = step_vote.cast

    def cast_and_miss(meet: Meet, passed: int = 0) -> int:
        def miss(point: str, said: str) -> Sequence[str]:
            answers = meet(point, said)
            if (step_vote.step, hvd.rank(), current().generation) == (step, 1, 1):
                until_s = time.monotonic() + 60
                while step not in {r.step for r in read(folder).records if isinstance(r, Voted)}:
                    assert time.monotonic() < until_s, "rank 0 has not seen the end of the vote either"
                    time.sleep(0.01)
                current().end.abort("it has missed the end of a vote")
                raise AbortError("the answers came too late")
            return answers

        return cast(miss, passed)

    step_vote.cast = cast_and_miss  # type: ignore[method-assign]


@final
class Training:
    """One worker's."""

    def __init__(self, folder: str, plan: Plan) -> None:
        self.plan, self.eaten = plan, 0
        self.model, self.optimizer, self.scheduler, self.scaler = model_and_more(
            partial(hvd.DistributedOptimizer, shard_state=plan.replicas > 0, replicas=max(1, plan.replicas))
        )
        self.sampler = hvd.elastic.ElasticSampler(Samples(), seed=3)
        self.loader = hvd.elastic.DataLoader(
            Samples(), global_batch_size=GLOBAL_BATCH, sampler=self.sampler, num_workers=plan.loaders
        )
        more = {"sampler": self.sampler, "scheduler": self.scheduler, "scaler": self.scaler, "draws": [], "grown": -1}
        self.state: Any = hvd.elastic.TorchState(self.model, self.optimizer, **more)
        self.resets: list[int] = []
        self.state.register_reset_callbacks([lambda: self.resets.append(hvd.size())])
        tear(self.state._step_vote, plan.torn, folder)

    def epochs(self) -> int:
        """Whole ones; -1 in the middle of one."""
        return {0: self.sampler.epoch, LENGTH: self.sampler.epoch + 1}.get(self.sampler.processed_num, -1)

    def train(self, state: Any) -> None:
        """As long as the plan says."""
        if state.grown < 0 and hvd.statistics()["generation"] > 1 and hvd.size() == self.plan.until_size:
            state.grown = self.sampler.epoch + 1
        while self.epochs() < max(self.plan.epochs, state.grown + 1) or (self.plan.until_size and state.grown < 0):
            if self.sampler.processed_num == LENGTH:
                self.sampler.set_epoch(self.sampler.epoch + 1)
            for x, y in self.loader:
                self.step(x, y)
                if hvd.size() < self.plan.until_size:
                    time.sleep(UNHURRIED_S)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """One, and what belongs to it."""
        draw = torch.rand(1).item()
        self.optimizer.zero_grad()
        self.scaler.scale(torch.nn.functional.mse_loss(self.model(x), y)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.state.draws.append(draw)
        if len(self.state.draws) % self.plan.commit_every == 0:
            try:
                self.state.commit()
            except Exception:
                self.eaten += 1

    def result(self) -> Result:
        """What came of it."""
        return Result(
            rank=hvd.rank(),
            steps=len(self.state.draws),
            epochs=self.epochs(),
            parameters=[p.flatten().tolist() for p in self.model.parameters()],
            rate=self.scheduler.get_last_lr()[0],
            scale=self.scaler.get_scale(),
            draws=self.state.draws,
            restarts=len(self.resets),
            eaten=self.eaten,
            expected=undisturbed(self.epochs()),
        )


def main(folder: str, plan: Plan) -> None:
    """One worker."""
    hvd.init()
    training = Training(folder, plan)
    ledger = Ledger(folder, training.state)
    inject(folder, plan.faults)
    hvd.elastic.run(training.train)(training.state)
    ledger.close()
    Path(folder, f"result-{os.getpid()}.json").write_bytes(msgspec.json.encode(training.result()))


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Plan))
