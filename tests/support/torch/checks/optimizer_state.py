"""Checks of the optimizer's state: loaded, and handed to other ranks, as those who share it expect."""

from __future__ import annotations

import copy
from typing import Any

import torch

import farandole.torch as hvd
from farandole.largebatch.schedule import Schedule
from farandole.torch import optim


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
            scheduler.step()  # without a warning that there was no step
            assert optimizer.param_groups[0]["lr"] == 0.05, (op, load)
            assert optimizer.param_groups is original.param_groups is groups
            assert optimizer.state is original.state is state
            assert torch.is_tensor(original.state[model.weight]["momentum_buffer"])
            _step(model, optimizer, 2)


def check_a_load_by_the_users_optimizer_reaches_the_one_that_steps() -> None:
    for load in ("broadcast", "elastic"):
        model = torch.nn.Linear(4, 1)
        original = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        group = original.param_groups[0]
        optimizer: Any = hvd.DistributedOptimizer(original, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        _step(model, optimizer, 1)
        state = hvd.elastic.TorchState(model, original) if load == "elastic" else None
        momentum = optimizer.state[model.weight]["momentum_buffer"].clone()
        _step(model, optimizer, 2)
        if state is None:
            group["lr"] = 0.1 + hvd.rank()
            hvd.broadcast_optimizer_state(original, root_rank=0)
        else:
            state.restore()
            assert torch.equal(optimizer.state[model.weight]["momentum_buffer"], momentum)
        assert optimizer.param_groups[0] is original.param_groups[0] is group, load
        assert optimizer.state is original.state
        assert group["lr"] == 0.1
        _step(model, optimizer, 3)


def check_a_schedule_of_the_users_optimizer_counts_the_samples_of_the_last_batch() -> None:
    batch = 2 * hvd.size()
    numbers = torch.utils.data.TensorDataset(torch.ones(2 * batch - 1, 4))
    model = torch.nn.Linear(4, 1)
    original = optim.LARS(model.parameters(), lr=0.1)
    schedule = hvd.SamplesLR(original, Schedule(0.1, batch, batch, 100.0), epoch_samples=len(numbers))
    optimizer = hvd.DistributedOptimizer(original, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(numbers)
    hvd.elastic.TorchState(model, optimizer, sampler=sampler).sync()
    for [x] in hvd.elastic.DataLoader(numbers, sampler=sampler, global_batch_size=batch):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
    assert schedule.position.samples == len(numbers) == sampler.processed_num


def check_a_lag_begins_anew_on_all_ranks_at_a_broadcast() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = optim.GradientLag(
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for seed in range(3):
        _step(model, optimizer, seed)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None
    assert not model.weight.grad.any()
    optimizer.step()
    for seed in range(3):
        _step(model, optimizer, seed)
    _same_on_all_ranks(model)


def check_a_state_comes_in_the_dtypes_and_the_order_that_it_has() -> None:
    """Fused kernels take tensors for flat memory; NAdam has a product in float32 for weights of bfloat16."""
    for receive in (_broadcast, _sync):
        convolution = torch.nn.Conv2d(3, 4, 3)
        convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.Adam(convolution.parameters(), lr=0.01, fused=True))
        receive(convolution, optimizer, torch.rand(2, 3, 6, 6).contiguous(memory_format=torch.channels_last))
        assert convolution.weight.stride() == (27, 1, 9, 3)
        assert optimizer.state[convolution.weight]["exp_avg"].stride() == convolution.weight.stride()

        model = torch.nn.Linear(4, 1).bfloat16()
        optimizer = hvd.DistributedOptimizer(torch.optim.NAdam(model.parameters(), lr=0.05))
        receive(model, optimizer, torch.rand(2, 4).bfloat16())
        assert optimizer.state[model.weight]["mu_product"].dtype is torch.float32
        assert optimizer.state[model.weight]["exp_avg"].dtype is torch.bfloat16


def _broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Let all ranks step, then take over what the last one has, and step on."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    last = hvd.size() - 1
    for _ in range(2):
        _step_on(model, optimizer, x)
    for values in optimizer.state.values():
        values["exp_avg"].mul_(1 + hvd.rank())
    hvd.broadcast_optimizer_state(optimizer, last)
    for _ in range(3):
        _step_on(model, optimizer, x)
    _same_on_all_ranks(model)


def _sync(model: torch.nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    """Let all ranks step, and all but the last forget that, as workers that have just come."""
    state: Any = hvd.elastic.TorchState(model, optimizer)
    state.sync()
    for _ in range(2):
        _step_on(model, optimizer, x)
    if hvd.rank() == hvd.size() - 1:
        state._step_vote.step += 1
    else:
        optimizer.state.clear()
    state.sync()
    for _ in range(3):
        _step_on(model, optimizer, x)
    _same_on_all_ranks(model)


def _step_on(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def _same_on_all_ranks(model: torch.nn.Module) -> None:
    flat = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    every = hvd.allgather(flat[None])
    assert (every == every[0]).all()
