"""A training of an elastic job, for tests: ``python elastic_training.py FOLDER PLAN``; ``Plan`` says what happens.

Its steps do not depend on who takes part: global batches are fixed, there is nothing random in the model, and what is
drawn beside it is the same on all ranks. So the oracle, ``undisturbed``, is one process that knows nothing of this.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

import farandole.torch as hvd
from farandole.elastic.ballot import Ballot, Meet
from farandole.errors import AbortError
from farandole.runtime.session import current
from farandole.testing.faults import Fault, inject
from farandole.testing.ledger import Ledger, Voted, read
from farandole.torch.elastic.sampler import ElasticSampler

LENGTH, GLOBAL_BATCH = 50, 8
GROWTH = 5


class Plan(msgspec.Struct, frozen=True):
    """``epochs`` are trained, and as many more as it takes until a later generation has trained ``until_size`` ranks.

    ``commit_every`` steps workers may come and go; ``loaders`` are processes that prepare batches. Rank 1 does not see
    the end of the vote of step ``torn``, which the others do.
    """

    faults: list[Fault] = []
    epochs: int = 2
    until_size: int = 0
    commit_every: int = 1
    loaders: int = 0
    torn: int = -1


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


def tear(ballot: Ballot, step: int, folder: str) -> None:
    """Have rank 1 miss the end of a vote."""
    cast = ballot.cast

    def cast_and_miss(meet: Meet) -> None:
        def miss(point: str, said: str) -> Sequence[str]:
            answers = meet(point, said)
            if (ballot.step, hvd.rank(), current().generation) == (step, 1, 1):
                until_s = time.monotonic() + 60
                while step not in {r.step for r in read(folder).records if isinstance(r, Voted)}:
                    assert time.monotonic() < until_s, "rank 0 has not seen the end of the vote either"
                    time.sleep(0.01)
                current().abort("it has missed the end of a vote")
                raise AbortError("the answers came too late")
            return answers

        cast(miss)

    ballot.cast = cast_and_miss  # type: ignore[method-assign]


def main(folder: str, plan: Plan) -> None:
    """One worker."""
    hvd.init()
    model, optimizer, scheduler, scaler = model_and_more(hvd.DistributedOptimizer)
    samples = Samples()
    sampler = hvd.elastic.ElasticSampler(samples, seed=3)
    loader = hvd.elastic.DataLoader(samples, global_batch_size=GLOBAL_BATCH, sampler=sampler, num_workers=plan.loaders)
    state: Any = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, scheduler=scheduler, scaler=scaler, draws=[], grown=-1
    )
    tear(state._ballot, plan.torn, folder)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    ledger = Ledger(folder, state)
    inject(folder, plan.faults)
    eaten = 0

    def trained() -> int:
        """Whole epochs; -1 in the middle of one."""
        return {0: sampler.epoch, LENGTH: sampler.epoch + 1}.get(sampler.processed_num, -1)

    @hvd.elastic.run
    def train(state: Any) -> None:
        nonlocal eaten
        if state.grown < 0 and hvd.statistics()["generation"] > 1 and hvd.size() == plan.until_size:
            state.grown = sampler.epoch + 1
        while trained() < max(plan.epochs, state.grown + 1) or (plan.until_size and state.grown < 0):
            if sampler.processed_num == LENGTH:
                sampler.set_epoch(sampler.epoch + 1)
            for x, y in loader:
                draw = torch.rand(1).item()
                optimizer.zero_grad()
                scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                state.draws.append(draw)
                if len(state.draws) % plan.commit_every == 0:
                    try:
                        state.commit()
                    except Exception:
                        eaten += 1

    train(state)
    ledger.close()
    result = Result(
        rank=hvd.rank(),
        steps=len(state.draws),
        epochs=trained(),
        parameters=[p.flatten().tolist() for p in model.parameters()],
        rate=scheduler.get_last_lr()[0],
        scale=scaler.get_scale(),
        draws=state.draws,
        restarts=len(resets),
        eaten=eaten,
        expected=undisturbed(trained()),
    )
    Path(folder, f"result-{os.getpid()}.json").write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Plan))
