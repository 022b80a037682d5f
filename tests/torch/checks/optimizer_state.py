"""Checks of the optimizer's state: loaded, and handed to other ranks, as those who share it expect."""

from __future__ import annotations

import copy
from typing import Any

import torch

import farandole.torch as hvd


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One step on inputs that differ between ranks."""
    generator = torch.Generator().manual_seed(100 * seed + hvd.rank())
    weight = next(model.parameters())
    optimizer.zero_grad()
    model(torch.rand(4, 4, generator=generator).to(weight.dtype)).square().mean().backward()
    optimizer.step()


def check_a_scheduler_of_the_users_optimizer_steers_after_a_load() -> None:
    for op in (hvd.Average, hvd.Adasum):
        for load in ("load_state_dict", "broadcast", "elastic"):
            model = torch.nn.Linear(4, 1)
            original = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            groups, state = original.param_groups, original.state
            scheduler = torch.optim.lr_scheduler.StepLR(original, 1, 0.5)
            optimizer: Any = hvd.DistributedOptimizer(original, model.named_parameters(), op=op)
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            _step(model, optimizer, 1)
            if load == "load_state_dict":
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            elif load == "broadcast":
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            else:
                hvd.elastic.TorchState(model, optimizer).sync()
            original._opt_called = True  # type: ignore[attr-defined] # what the scheduler looks for before it warns
            scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.05, (op, load)
            assert optimizer.param_groups is original.param_groups is groups
            assert optimizer.state is original.state is state
            assert torch.is_tensor(original.state[model.weight]["momentum_buffer"])
            _step(model, optimizer, 2)
