"""Checks that gradients are reduced wherever they lie, and that those that somebody keeps are left alone."""

from __future__ import annotations

import copy
import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest
import torch

import farandole.torch as hvd
from farandole.runtime.session.init import current

STEPS = 3
Build = Callable[[], torch.nn.Module]


def linear() -> torch.nn.Module:
    """A matrix and a vector, the same on every rank."""
    torch.manual_seed(5)
    return torch.nn.Linear(4, 3).double()


def convolution() -> torch.nn.Module:
    """Memory formats matter here."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Flatten()).double()


def inputs(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    """One rank's batch."""
    shape = (3, 4) if isinstance(model, torch.nn.Linear) else (3, 2, 4, 4)
    generator = torch.Generator().manual_seed(100 * step + rank)
    dtype = next(model.parameters()).dtype
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def sgd(model: torch.nn.Module, op: int = hvd.Average) -> torch.optim.Optimizer:
    """Distributed; momentum lets no wrong step go unnoticed."""
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """All of them."""
    return [param.grad for param in model.parameters() if param.grad is not None]


def alone(build: Build, change: Callable[[torch.nn.Module, int], object], op: int) -> Iterator[torch.nn.Module]:
    """The same training on plain PyTorch, after each step: all ranks' gradients are computed here."""
    models = [build() for _ in range(hvd.size())]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    for step in range(STEPS):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad(set_to_none=step % 2 == 0)
            model(inputs(model, step, rank)).square().sum().backward()
        for column in zip(*map(gradients, models), strict=True):
            total = torch.stack(list(column)).sum(dim=0) / (hvd.size() if op == hvd.Average else 1)
            for each in column:
                each.copy_(total)
        for model, optimizer in zip(models, optimizers, strict=True):
            change(model, step)
            optimizer.step()
        yield models[0]


def trains_alike(change: Callable[[torch.nn.Module, int], object], build: Build = linear, atol: float = 1e-10) -> None:
    """Do ``change`` to the reduced gradients before every step: weights are those of plain PyTorch, on all ranks."""
    for op in (hvd.Average, hvd.Sum):
        model = build()
        optimizer = sgd(model, op)
        for step, other in enumerate(alone(build, change, op)):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model(inputs(model, step, hvd.rank())).square().sum().backward()
            change(model, step)
            optimizer.step()
            for mine, expected in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(mine, expected, atol=atol, rtol=1e-6)
            weights = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
            every = hvd.allgather(weights[None])
            assert (every == every[0]).all()


def clamp(model: torch.nn.Module, _: int) -> None:
    """As older scripts clip."""
    for grad in gradients(model):
        grad.data = grad.data.clamp(-1, 1)


def swap(model: torch.nn.Module, step: int) -> None:
    """Once is enough."""
    for grad in gradients(model) if step == 0 else []:
        grad.data = grad.data.clone()


def set_to_half(model: torch.nn.Module, _: int) -> None:
    """Another way to the same."""
    for grad in gradients(model):
        grad.set_(grad.clone() / 2)  # type: ignore[call-overload] # its stub lacks tensors


def detach(model: torch.nn.Module, _: int) -> None:
    """Views cannot be."""
    for grad in gradients(model):
        grad.detach_()


def share(model: torch.nn.Module, step: int) -> None:
    """Moves the memory under all tensors."""
    if step == 0:
        model.share_memory()


def check_gradients_that_got_other_memory() -> None:
    for change in (clamp, swap, set_to_half, detach, share):
        trains_alike(change)


def check_models_that_change_their_memory_format() -> None:
    def last(model: torch.nn.Module, step: int) -> None:
        if step == 0:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stub lacks this

    def last_here(model: torch.nn.Module, step: int) -> None:
        if step == 1 and hvd.rank() == 0:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stub lacks this

    trains_alike(last, convolution)
    trains_alike(last_here, convolution)


def check_gradients_that_are_kept() -> None:
    model = linear()
    optimizer = sgd(model)
    kept: list[list[torch.Tensor]] = []
    for factor in (1.0, -2.0):
        optimizer.zero_grad()
        (model(inputs(model, 0, hvd.rank())).sum() * factor).backward()
        kept.append(gradients(model))
    product = sum((a * b).sum() for a, b in zip(*kept, strict=True))
    assert product < 0
    for first, second in zip(*kept, strict=True):
        torch.testing.assert_close(second, -2 * first)


def check_the_gradient_tensor_of_a_user_is_what_is_written() -> None:
    for detach in (False, True):
        param = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
        bias = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param, bias], lr=1.0))
        buffer = torch.zeros(10, dtype=torch.float64)  # one buffer of all gradients, as flat optimizers have
        parts = [buffer[:6].view(2, 3), buffer[6:9]]
        param.grad, bias.grad = [part.detach() for part in parts] if detach else parts
        mean = (hvd.size() + 1) / 2
        for turn in range(1, 3):
            ((param.sum() + bias.sum()) * (hvd.rank() + 1)).backward()
            assert buffer.tolist() == [turn * mean] * 9 + [0.0]
        optimizer.step()
        assert param.tolist() == [[1 - 2 * mean] * 3] * 2


def check_gradients_that_share_memory() -> None:
    size, rank = hvd.size(), hvd.rank()
    for op, factor in ((hvd.Average, 1 / size), (hvd.Sum, 1.0)):
        one, other = (torch.nn.Parameter(torch.zeros(40, dtype=torch.float64)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([one, other], lr=1.0), op=op)
        for first in (True, False):
            if not first:
                optimizer.zero_grad()
            one.grad = torch.zeros(40, dtype=torch.float64)
            other.grad = one.grad if rank == 0 or first else torch.zeros(40, dtype=torch.float64)
            (one.sum() * (rank + 1) + other.sum() * 10).backward()
            total = sum(r + 11 for r in range(size)) * factor
            if first:
                assert one.grad.tolist() == other.grad.tolist() == pytest.approx([total] * 40)
                optimizer.step()
            else:
                assert one.grad.tolist() == pytest.approx([(11 + sum(range(2, size + 1))) * factor] * 40)
                assert other.grad.tolist() == pytest.approx([(11 + 10 * (size - 1)) * factor] * 40)


def check_gradients_that_are_no_memory_of_their_own() -> None:
    size, rank = hvd.size(), hvd.rank()
    params = [torch.nn.Parameter(torch.zeros(6, 5, dtype=torch.complex128)) for _ in range(5)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=hvd.Sum)
    base = torch.arange(60, dtype=torch.float64).reshape(6, 10).to(torch.complex128) * (1 + 2j) * (rank + 1)
    for turn in range(2):
        given = [
            base[:, ::2],
            base[:1, :1].expand(6, 5),
            base[:, :5].conj(),
            base[:5, :6].t(),
            torch.as_strided(base.clone(), (6, 5), (1, 1)),
        ]
        for param, grad in zip(params, given, strict=True):
            param.grad = grad if turn else grad.clone()
        expected = [grad.clone() / (rank + 1) * (size * (size + 1) / 2) for grad in given]
        optimizer.synchronize()
        for param, total in zip(params, expected, strict=True):
            torch.testing.assert_close(param.grad, total)
        optimizer.step()


def check_gradients_with_a_graph() -> None:
    param = torch.nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    (grad,) = torch.autograd.grad((param**3).sum() * (hvd.rank() + 1), param, create_graph=True)
    before = grad.detach().clone()
    param.grad = grad
    optimizer.synchronize()
    assert torch.equal(grad.detach(), before)  # it is a part of a graph, which somebody may still want
    assert param.grad is not None
    assert param.grad.tolist() == [12 * (hvd.size() + 1) / 2] * 3
    optimizer.step()


def check_that_scalars_and_nothing_are_gradients_too() -> None:
    scalar = torch.nn.Parameter(torch.tensor(1.0))
    empty = [torch.nn.Parameter(torch.ones(0, 3)) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([scalar, *empty], lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (scalar * (hvd.rank() + 1) + sum(each.sum() for each in empty)).backward()
        assert scalar.grad is not None
        assert scalar.grad.item() == (hvd.size() + 1) / 2
        assert all(each.grad is not None and each.grad.shape == (0, 3) for each in empty)
        optimizer.step()


def _overwrite(model: torch.nn.Module) -> None:
    for grad in gradients(model):
        grad.fill_(777.0)


def check_that_children_do_not_write_into_their_parents_gradients() -> None:
    if current().engine not in ("shm", "solo") or not hasattr(os, "fork"):
        return
    model = linear()
    optimizer = sgd(model)
    model(inputs(model, 0, hvd.rank())).sum().backward()
    before = copy.deepcopy(gradients(model))
    child = multiprocessing.get_context("fork").Process(target=_overwrite, args=(model,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert all(torch.equal(a, b) for a, b in zip(gradients(model), before, strict=True))
    optimizer.step()


def check_that_new_gradients_lie_as_autograd_lays_them() -> None:
    """Strides decide how a step rounds, in half precision at least: all ranks must have the same ones."""
    layer = torch.nn.Conv2d(4, 4, 3)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=1.0))
    layer(torch.ones(1, 4, 3, 3)).sum().backward()
    optimizer.step()
    layer.weight.data = layer.weight.data.to(memory_format=torch.channels_last)
    optimizer.zero_grad()
    if hvd.rank() > 0 or hvd.size() == 1:
        layer(torch.ones(1, 4, 3, 3)).sum().backward()
    optimizer.step()
    assert layer.weight.grad is not None
    assert layer.weight.grad.stride() == layer.weight.stride()
    assert set(hvd.allgather_object(layer.weight.grad.stride())) == {layer.weight.stride()}
