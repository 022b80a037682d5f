"""Checks of the backend of ``torch.distributed``, beside ``farandole.torch`` in one process."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import farandole.torch as hvd
from farandole.collective import DType
from farandole.errors import MismatchError, StallError
from farandole.torch_backend import register

IS_NEW = hasattr(dist, "all_gather_single")
"""True from PyTorch 2.13 on, which has other names for what it had before."""

all_gather_single: Callable[..., Any] = getattr(dist, "all_gather_single" if IS_NEW else "all_gather_into_tensor")
reduce_scatter_single: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single" if IS_NEW else "reduce_scatter_tensor"
)


@contextlib.contextmanager
def world(timeout_s: float = 60.0) -> Iterator[tuple[int, int]]:
    """The default group, on the session that there is; its rank and size."""
    register()
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else "", name="folder")
    store = dist.FileStore(str(Path(folder) / "store"), hvd.size())  # type: ignore[attr-defined]
    limit = dt.timedelta(seconds=timeout_s)
    dist.init_process_group("farandole", store=store, rank=hvd.rank(), world_size=hvd.size(), timeout=limit)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def total(size: int, of: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """Sum over all ranks."""
    return torch.stack([of(r) for r in range(size)]).sum(0)


def mine(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, others on each rank."""
    count = int(np.prod(shape))
    return (torch.arange(count) % 5 + 1 + rank).reshape(shape).to(dtype)


def check_reductions_of_process_groups() -> None:
    with world() as (rank, size):
        assert dist.get_backend() == "farandole"
        for each in DType:
            dtype = getattr(torch, each.label)
            for op, combine in ((dist.ReduceOp.SUM, torch.sum), (dist.ReduceOp.MAX, torch.amax)):
                if each.is_complex and op == dist.ReduceOp.MAX:
                    continue
                exact = torch.complex128 if each.is_complex else torch.float64  # PyTorch cannot sum all dtypes
                expected = combine(torch.stack([mine(r, 3, 2, dtype=exact) for r in range(size)]), dim=0).to(dtype)
                found = mine(rank, 3, 2, dtype=dtype)
                dist.all_reduce(found, op=op)
                assert torch.equal(found, expected), (each, op)
        wide = mine(rank, 4, 6)[:, ::2]  # with gaps
        dist.all_reduce(wide, op=dist.ReduceOp.AVG)
        assert torch.equal(wide, torch.stack([mine(r, 4, 6)[:, ::2] for r in range(size)]).mean(0))
        for op, expected_bits in ((dist.ReduceOp.BOR, 2**size - 1), (dist.ReduceOp.BXOR, 2**size - 1)):
            bits = torch.tensor([1 << rank])
            dist.all_reduce(bits, op=op)
            assert bits.item() == expected_bits
        with pytest.raises(ValueError, match="bits are combined of integers"):
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND)
        rows = torch.sparse_coo_tensor(torch.tensor([[0, rank + 1]]), torch.ones(2, 3), (size + 1, 3))
        dist.all_reduce(rows)
        assert rows.to_dense()[:, 0].tolist() == [size, *[1.0] * size]
        to_root = mine(rank, 2)
        dist.reduce(to_root, size - 1)
        assert rank < size - 1 or torch.equal(to_root, total(size, lambda r: mine(r, 2)))
        part = torch.empty(2)
        reduce_scatter_single(part, mine(rank, size * 2))
        assert torch.equal(part, total(size, lambda r: mine(r, size * 2))[2 * rank : 2 * rank + 2])
        dist.reduce_scatter(part, [mine(rank, 2) + i for i in range(size)])
        assert torch.equal(part, total(size, lambda r: mine(r, 2) + rank))


def check_copies_of_process_groups() -> None:
    with world() as (rank, size):
        whole = torch.empty(size, 3)
        all_gather_single(whole, mine(rank, 3))
        assert torch.equal(whole, torch.stack([mine(r, 3) for r in range(size)]))
        uneven = [torch.empty(r + 1) for r in range(size)]
        dist.all_gather(uneven, mine(rank, rank + 1))
        assert [each.tolist() for each in uneven] == [mine(r, r + 1).tolist() for r in range(size)]
        copied = mine(rank, 3)
        dist.broadcast(copied, size - 1)
        assert torch.equal(copied, mine(size - 1, 3))
        parts = [torch.empty(2) for _ in range(size)] if rank == 0 else None
        dist.gather(mine(rank, 2), parts, dst=0)
        assert parts is None or [each.tolist() for each in parts] == [mine(r, 2).tolist() for r in range(size)]
        own = torch.empty(2)
        dist.scatter(own, [mine(r, 2) for r in range(size)] if rank == 0 else None, src=0)
        assert torch.equal(own, mine(rank, 2))
        turned = torch.empty(size)
        dist.all_to_all_single(turned, torch.arange(float(size)) + 10 * rank)
        assert turned.tolist() == [10.0 * r + rank for r in range(size)]
        found = [torch.empty(r + 1) for r in range(size)]
        dist.all_to_all(found, [mine(rank, rank + 1) + to for to in range(size)])
        assert [each.tolist() for each in found] == [(mine(r, r + 1) + rank).tolist() for r in range(size)]
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": r} for r in range(size)]


def check_outputs_that_do_not_fit_are_refused() -> None:
    """Engines go by address: a wrong size would be read, or written, beyond the tensor."""
    with world() as (rank, size):
        whole, wide = mine(rank, 2 * size), torch.empty(2 * size, dtype=torch.float64)
        wrongs: list[Callable[[], Any]] = [
            lambda: dist.all_gather([torch.empty(2)] * size, mine(rank, 1)),
            lambda: dist.all_gather([torch.empty(2)] * size, mine(rank, 3)),
            lambda: all_gather_single(torch.empty(2 * size + 1), mine(rank, 2)),
            lambda: all_gather_single(wide, mine(rank, 2)),
            lambda: reduce_scatter_single(torch.empty(1), whole),
            lambda: reduce_scatter_single(wide[:2], whole),
            lambda: dist.reduce_scatter(torch.empty(1), [mine(rank, 2)] * size),
            lambda: dist.all_to_all_single(wide, whole),
        ]
        for wrong in wrongs:
            with pytest.raises(ValueError, match=r"must have|dtype"):
                wrong()
        dist.all_reduce(whole)  # none of them has begun


def check_works_and_futures_of_process_groups() -> None:
    with world() as (rank, size):
        tensors = [mine(rank, 3) + i for i in range(20)]
        works = [dist.all_reduce(each, async_op=True) for each in tensors]
        doubled = works[0].get_future().then(lambda future: future.value()[0] * 2)
        last = torch.ones(1)
        dist.all_reduce(last)  # after all that were begun before
        assert all(work.is_completed() for work in works)
        for i, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
            assert work.wait()
            assert torch.equal(tensor, total(size, lambda r, i=i: mine(r, 3) + i))  # type: ignore[misc]
        assert torch.equal(doubled.wait(), tensors[0] * 2)


def check_groups_of_some_ranks() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    with world() as (rank, size):
        for ranks in ([0], [size - 1], list(range(size))):
            group = dist.new_group(ranks)
            if rank in ranks:
                ones = torch.ones(1)
                dist.all_reduce(ones, group=group)
                assert ones.item() == len(ranks)
        mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("row", "column"))
        assert mesh["row"].size() == 1
        ones = torch.ones(1)
        dist.all_reduce(ones, group=mesh.get_group("column"))
        assert ones.item() == size


def check_messages_of_process_groups() -> None:
    with world() as (rank, size):
        after, before = (rank + 1) % size, (rank - 1) % size
        if size == 1:
            return
        found = torch.empty(3)
        work = dist.isend(mine(rank, 3), after)
        assert dist.recv(found, before) == before
        assert work is None or work.wait()
        assert torch.equal(found, mine(before, 3))
        for tag in (1, 2):
            dist.send(torch.tensor([tag]), after, tag=tag)
        tags = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
        for tag in (2, 1):  # not in the order in which they were sent
            dist.recv(tags[tag - 1], before, tag=tag)
        assert [int(tag) for tag in tags] == [1, 2]
        if rank:
            dist.send(mine(rank, 2), 0, tag=5)
        else:
            for _ in range(size - 1):
                anybodys = torch.empty(2)
                sender = dist.recv(anybodys, tag=5)
                assert torch.equal(anybodys, mine(sender, 2))
        exchange = [dist.P2POp(dist.isend, mine(rank, 3), after), dist.P2POp(dist.irecv, found, before)]
        for each in dist.batch_isend_irecv(exchange):
            each.wait()
        assert torch.equal(found, mine(before, 3))
        hasty = dist.new_group(timeout=dt.timedelta(seconds=0.2))
        with pytest.raises(StallError, match="nothing came from"):
            dist.recv(torch.empty(1), before, group=hasty)


def check_a_program_that_breaks_the_order_is_told_where() -> None:
    with world() as (rank, size):
        if size == 1:
            return
        for is_async in (False, True):
            with pytest.raises(MismatchError, match="asked for different things") as caught:
                _breaks_the_order(rank, is_async)
            begin = _breaks_the_order.__code__.co_firstlineno
            _, *told = re.split(r"\nrank \d on \S+ called ", str(caught.value))
            for r, text in enumerate(told):
                verb, line = ("broadcast", begin + 2) if r else ("all_reduce", begin + 4)
                assert text.startswith(verb)
                assert re.search(rf"process_groups.py\D+{line}\b", text), text
            assert len(told) == size
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == size


def _breaks_the_order(rank: int, is_async: bool) -> None:
    if rank:
        work = dist.broadcast(torch.ones(3), 0, async_op=is_async)
    else:
        work = dist.all_reduce(torch.ones(3), async_op=is_async)
    if work is not None:
        work.wait()


def check_who_is_missing_is_named() -> None:
    with world() as (rank, size):
        if size == 1:
            return
        group: Any = dist.group.WORLD
        group.monitored_barrier(dt.timedelta(seconds=60))
        if rank < size - 1:
            with pytest.raises(StallError, match=f"without rank {size - 1} on"):
                group.monitored_barrier(dt.timedelta(seconds=0.2))
        hvd.barrier()


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: list[int]) -> list[torch.Tensor]:
    """Steps on the batches of ``ranks``, put together."""
    for step in range(3):
        source = [torch.Generator().manual_seed(100 * step + rank) for rank in ranks]
        batch = torch.cat([torch.rand(3, 4, generator=each) for each in source])
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [each.full_tensor() if hasattr(each, "full_tensor") else each.detach() for each in model.parameters()]


def check_ddp_and_fsdp_train_as_one_process_does() -> None:
    from torch.distributed.fsdp import fully_shard

    with world() as (rank, size):
        alone = network(1)
        expected = trained(alone, torch.optim.Adam(alone.parameters(), 0.01, eps=1e-3), list(range(size)))
        replicated: Any = DistributedDataParallel(network(1), bucket_cap_mb=1e-4)
        sharded: Any = network(1)
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer)
        for model in (replicated, sharded):
            found = trained(model, torch.optim.Adam(model.parameters(), 0.01, eps=1e-3), [rank])
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
