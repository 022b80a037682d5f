"""One rank of the benchmark of ``torch.distributed``: the same work on a group of Farandole's and on one of Gloo's.

Both groups are in one process, and their rounds alternate. Also the optimizer whose state ranks share out, beside the
replicated one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import farandole.torch as hvd
from benchmarks.models import make

LAYERS, WIDTH, BATCH = 10, 1024, 16
"""40 MB of weights."""
BYTES = {"4 B": 4, "64 KB": 2**16, "64 MB": 2**26}
GATHERED_BYTES = 2**24

Step = Callable[[], object]


def verbs(group: dist.ProcessGroup) -> dict[str, Step]:
    """The collectives on tensors of their own."""
    found: dict[str, Step] = {
        f"all_reduce {name}": partial(dist.all_reduce, torch.ones(nbytes // 4), group=group)
        for name, nbytes in BYTES.items()
    }
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the names before 2.13
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    part, whole = torch.ones(GATHERED_BYTES // 4), torch.empty(group.size() * GATHERED_BYTES // 4)
    found["all_gather_into_tensor 16 MB"] = lambda: gather(whole, part, group=group)
    piece = torch.empty(part.numel() // group.size())
    found["reduce_scatter_tensor 16 MB"] = lambda: scatter(piece, part, group=group)
    return found


def network() -> torch.nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[m for _ in range(LAYERS) for m in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())])


def stepper(model: torch.nn.Module) -> Step:
    """A step of SGD."""
    optimizer, inputs = torch.optim.SGD(model.parameters(), lr=0.01), torch.rand(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def trainings(group: dist.ProcessGroup) -> dict[str, Step]:
    """PyTorch's own two ways to train."""
    replicated = torch.nn.parallel.DistributedDataParallel(network(), process_group=group)
    sharded, mesh = network(), DeviceMesh.from_group(group, "cpu")
    for layer in sharded.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return {"DDP, MLP of 40 MB": stepper(replicated), "FSDP2 by layer, MLP of 40 MB": stepper(sharded)}


def optimizers(shard_state: bool, replicas: int = 0) -> dict[str, Step]:
    """A step of AdamW, whose state is twice the weights; one that is voted, if there are ``replicas``."""
    task = make("large")
    optimizer: Any = torch.optim.AdamW(task.network.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, shard_state=shard_state, replicas=max(1, replicas))
    if replicas:
        hvd.elastic.TorchState(task.network, optimizer)  # has the optimizer vote, from now on

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(task.network(task.inputs), task.labels).backward()
        optimizer.step()

    return {f"AdamW, {task.title}": step}


def timed(step: Step, seconds: float) -> float:
    """Milliseconds of one, of as many as fill ``seconds``: as many on every rank."""
    begin = time.perf_counter()
    step()
    taken_s = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(taken_s, dist.ReduceOp.MAX)
    times = max(2, min(1000, int(seconds / taken_s.item())))
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times * 1e3


def main() -> None:
    """``RESULT ROUNDS SECONDS``, and ``replicas`` for the optimizers of an elastic job alone."""
    result, rounds, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("farandole")
    hvd.init()
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    assert ours is not None
    contenders: dict[str, dict[str, Step]]
    if sys.argv[4:] == ["replicas"]:
        contenders = {
            "replicated": optimizers(shard_state=False, replicas=1),
            "shard_state": optimizers(shard_state=True),
            "replicas=2": optimizers(shard_state=True, replicas=2),
        }
    else:
        contenders = {
            "farandole": {**verbs(ours), **trainings(ours)},
            "gloo": {**verbs(gloo), **trainings(gloo)},
            "replicated": optimizers(shard_state=False),
            "shard_state": optimizers(shard_state=True),
        }
    for steps in contenders.values():
        for step in steps.values():
            timed(step, 0.0)
    measured: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for contender, steps in contenders.items():
            for name, step in steps.items():
                measured.setdefault(name, {}).setdefault(contender, []).append(timed(step, seconds))
    if dist.get_rank() == 0:
        result.write_text(json.dumps(measured))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
