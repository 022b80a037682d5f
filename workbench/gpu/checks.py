"""One rank of a check: ``farandole run -np 2 python -m workbench.gpu.checks cuda torch``.

Each check also runs on a CPU (``cpu``), except for properties of a device: streams, graphs, errors that stay.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from workbench.gpu.host_copies import of_jax, of_tensorflow


def of_torch(device: torch.device) -> None:
    """Collectives, an optimizer compared with the oracle, mixed precision, streams and graphs."""
    import farandole.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8):
        x = torch.full((1001,), rank + 1, dtype=dtype, device=device)
        total = hvd.allreduce(x, op=hvd.Sum, name=f"sum {dtype}")
        assert total.device.type == device.type
        assert (total == size * (size + 1) // 2).all(), (dtype, total)
    rows = torch.full((rank + 1, 2), float(rank), device=device)
    gathered = hvd.allgather(rows, name="rows")
    assert gathered.shape == (size * (size + 1) // 2, 2)
    assert hvd.broadcast(rows[:1].clone(), size - 1, name="root").unique().item() == size - 1
    print(f"rank {rank}: collectives of 6 dtypes")
    _trains(device, hvd)
    _trains(device, hvd, shard_state=True)
    _scales(device, hvd)
    if device.type == "cuda":
        _streams(device, hvd)
        _graphs(device)
    hvd.shutdown()


def _network(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4)]
    return torch.nn.Sequential(*layers).to(device)


def _images(device: torch.device, rank: int, step: int) -> torch.Tensor:
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)


def _trains(device: torch.device, hvd: Any, **options: Any) -> None:
    """The weights equal those of one process on the joined batch."""
    model, alone = _network(device), _network(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model.named_parameters(), **options)
    oracle = torch.optim.AdamW(alone.parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(_images(device, hvd.rank(), step)).square().mean().backward()
        optimizer.step()
        oracle.zero_grad()
        alone(torch.cat([_images(device, rank, step) for rank in range(hvd.size())])).square().mean().backward()
        oracle.step()
    for mine, its in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)
    print(f"rank {hvd.rank()}: 3 steps of AdamW {options or ''}")


def _scales(device: torch.device, hvd: Any) -> None:
    """Mixed precision: a step whose scaled gradients are infinite on one rank is skipped by all."""
    model, scaler = _network(device), torch.amp.GradScaler(device.type, init_scale=4.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    before = [param.detach().clone() for param in model.parameters()]
    for is_infinite in (True, False):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(_images(device, hvd.rank(), 0)).float().square().mean()
        scaler.scale(loss * (float("inf") if is_infinite and hvd.rank() == hvd.size() - 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        is_same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert is_same == is_infinite, is_infinite
    print(f"rank {hvd.rank()}: mixed precision")


def _streams(device: torch.device, hvd: Any) -> None:
    """Reduce a tensor that a side stream is still computing: the reduction waits for it."""
    stream, x = torch.cuda.Stream(device), torch.ones(2**22, device=device)
    with torch.cuda.stream(stream):
        for _ in range(200):
            x = x * 1.0 + 0.0
        y = x * (hvd.rank() + 1)
        found = hvd.allreduce(y, op=hvd.Sum, name="from a side stream")
    expected = hvd.size() * (hvd.size() + 1) / 2
    assert (found == expected).all()
    print(f"rank {hvd.rank()}: streams")


def _graphs(device: torch.device) -> None:
    """A captured step replays between reductions."""
    x, total = torch.zeros(16, device=device), torch.zeros(16, device=device)
    graph: Any = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total += x
    for step in range(3):
        x.fill_(step)
        graph.replay()
    assert total.unique().item() == 3.0
    print("graphs")


def of_distributed(device: torch.device) -> None:
    """The backend of ``torch.distributed`` with tensors of the device, and DDP."""
    import torch.distributed as dist

    dist.init_process_group("farandole")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((5,), rank + 1.0, device=device)
    dist.all_reduce(x)
    assert (x == size * (size + 1) / 2).all()
    parts = [torch.empty(5, device=device) for _ in range(size)]
    dist.all_gather(parts, torch.full((5,), float(rank), device=device))
    assert [part[0].item() for part in parts] == [float(each) for each in range(size)]
    model = torch.nn.parallel.DistributedDataParallel(_network(device))
    model(_images(device, rank, 0)).square().mean().backward()
    gradients = [param.grad.clone() for param in model.parameters() if param.grad is not None]
    for gradient in gradients:
        mine = gradient.clone()
        dist.broadcast(gradient, 0)
        assert torch.equal(mine, gradient)
    print(f"rank {rank}: torch.distributed")
    dist.destroy_process_group()


def of_mixed(device: torch.device) -> None:
    """One group of two backends: the engine for host memory, NCCL for the device."""
    import torch.distributed as dist

    dist.init_process_group("cpu:farandole,cuda:nccl")
    if device.type == "cuda":
        torch.cuda.set_device(0)
    for where in {torch.device("cpu"), device}:
        x = torch.full((5,), dist.get_rank() + 1.0, device=where)
        dist.all_reduce(x)
        assert x.unique().item() == dist.get_world_size() * (dist.get_world_size() + 1) / 2
    group: Any = dist.group.WORLD
    print(f"rank {dist.get_rank()}: {group.others}")
    dist.destroy_process_group()


def of_sticky(device: torch.device) -> None:
    """The next collective names a device that has failed, and ends."""
    import farandole.torch as hvd

    hvd.init()
    with torch.no_grad():
        try:
            torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum()
            hvd.allreduce(torch.ones(3, device=device), name="after the error")
        except Exception as error:
            print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            return
    raise AssertionError("nothing was raised")


def of_speed(device: torch.device) -> None:
    """Milliseconds of a step, compared with DDP on NCCL (on the CPU with Gloo)."""
    import torch.distributed as dist

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method="farandole://")
    widths = [(1024, 4096), (4096, 4096), (4096, 1024)] if device.type == "cuda" else [(64, 64), (64, 64)]
    layers = [layer for pair in widths for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    steps: dict[str, Callable[[], None]] = {}
    for name in ("farandole", "ddp"):
        model: Any = torch.nn.Sequential(*layers).to(device)
        if name == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
        if name == "farandole":
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        inputs = torch.rand(64, widths[0][0], device=device)

        def step(model: Any = model, optimizer: Any = optimizer, inputs: torch.Tensor = inputs) -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        steps[name] = step
    taken = {name: [_milliseconds(step, device) for _ in range(5)] for name, step in steps.items()}
    print(json.dumps({name: round(statistics.median(values), 4) for name, values in taken.items()}))
    dist.destroy_process_group()


def _milliseconds(step: Callable[[], None], device: torch.device, times: int = 20) -> float:
    for is_timed in (False, True):
        begin = time.perf_counter()
        for _ in range(times if is_timed else 3):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / times * 1e3


CHECKS = {
    "torch": of_torch,
    "distributed": of_distributed,
    "mixed": of_mixed,
    "sticky": of_sticky,
    "jax": of_jax,
    "tensorflow": of_tensorflow,
    "speed": of_speed,
}

if __name__ == "__main__":
    CHECKS[sys.argv[2]](torch.device(sys.argv[1]))
