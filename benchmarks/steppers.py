"""One training step, three ways: without communication, under DDP, under Farandole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from benchmarks.models import Task

Step: TypeAlias = Callable[[], None]
Steppers: TypeAlias = dict[str, Callable[[Task], Step]]

SHARDS = 2
"""Micro-batches of each rank in a step of those that accumulate."""


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


def accumulating(task: Task) -> Step:
    """As many micro-batches per step as a rank has shards, added up as they come."""
    import farandole.torch as hvd

    optimizer = hvd.DistributedOptimizer(task.optimizer(), backward_passes_per_step=SHARDS)
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(SHARDS):
            (cross_entropy(task.network(task.inputs), task.labels) / SHARDS).backward()
        optimizer.step()

    return step


def virtual(task: Task) -> Step:
    """The same micro-batches as shards of virtual workers."""
    import farandole.torch as hvd

    count = SHARDS * hvd.size()
    optimizer: Any = hvd.DistributedOptimizer(task.optimizer(), virtual_workers=count)
    hvd.broadcast_parameters(task.network.state_dict(), root_rank=0)

    def step() -> None:
        for _ in optimizer.shards(count * len(task.labels)):
            cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return step


STEPPERS: Steppers = {"none": alone, "ddp": ddp, "farandole": farandole}
ACCUMULATING: Steppers = {"accumulating": accumulating, "virtual workers": virtual}


def _stepper(task: Task, network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(network(task.inputs), task.labels).backward()
        optimizer.step()

    return step
