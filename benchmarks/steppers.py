"""One training step, three ways: without communication, under DDP, under Farandole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from benchmarks.models import Task

Step: TypeAlias = Callable[[], None]


def connect_gloo(store: Path, rank: int, size: int) -> None:
    """PyTorch's default process group over the loopback interface, which DDP needs."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def alone(task: Task) -> Step:
    """Without communication."""
    return _stepper(task, task.network, task.optimizer())


def ddp(task: Task) -> Step:
    """With PyTorch's own DistributedDataParallel."""
    return _stepper(task, torch.nn.parallel.DistributedDataParallel(task.network), task.optimizer())


def farandole(task: Task) -> Step:
    """With Farandole's DistributedOptimizer."""
    import farandole.torch as hvd

    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)
    return _stepper(task, task.network, optimizer)


STEPPERS: dict[str, Callable[[Task], Step]] = {"none": alone, "ddp": ddp, "farandole": farandole}


def _stepper(task: Task, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(task.inputs), task.labels).backward()
        optimizer.step()

    return step
