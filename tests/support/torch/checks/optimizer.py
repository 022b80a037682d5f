"""Checks of ``DistributedOptimizer``: what many ranks train is what one process trains on all their data."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole.errors import MismatchError, UsageError

BATCH = 4
Make = Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer]


def network() -> torch.nn.Sequential:
    """The same on every rank and in every check."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5, bias=False)).double()


def batches(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's batch, or all ranks' batches together."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(hvd.size(), BATCH, 6, dtype=torch.float64, generator=generator)
    y = torch.randn(hvd.size(), BATCH, 5, dtype=torch.float64, generator=generator)
    return (x.flatten(0, 1), y.flatten(0, 1)) if rank is None else (x[rank], y[rank])


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean squared error."""
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def same(one: torch.nn.Module, other: torch.nn.Module, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Parameters are equal up to rounding."""
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def grad_of(param: torch.Tensor) -> torch.Tensor:
    """Its gradient, which is there."""
    assert param.grad is not None
    return param.grad


def sgd(params: Any) -> torch.optim.Optimizer:
    """With everything that depends on earlier gradients."""
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01)


def trains_like_one(make: Make, steps: int = 4, tolerance: float = 1e-9, **options: Any) -> None:
    """Train on this rank's batches, and alone on all ranks' batches; compare after every step."""
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    reference = make(alone.parameters())
    for step in range(steps):
        for m, o, batch in ((model, optimizer, batches(step, hvd.rank())), (alone, reference, batches(step))):
            o.zero_grad(set_to_none=step % 2 == 0)
            loss_of(m, batch).backward()
            o.step()
        same(model, alone, rtol=tolerance, atol=tolerance)


def check_sgd_adam_and_others() -> None:
    trains_like_one(sgd)
    trains_like_one(lambda p: torch.optim.Adam(p, lr=0.01))
    trains_like_one(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True))


def check_muon() -> None:
    model, alone = network(), network()
    optimizers: list[torch.optim.Optimizer] = []
    for m in (model, alone):
        matrices = [p for p in m.parameters() if p.dim() == 2]
        optimizers.append(torch.optim.Muon(matrices, lr=0.01))
    optimizers[0] = hvd.DistributedOptimizer(optimizers[0])
    for step in range(3):
        for m, o, batch in zip((model, alone), optimizers, (batches(step, hvd.rank()), batches(step)), strict=True):
            m.zero_grad()
            loss_of(m, batch).backward()
            o.step()
    same(model, alone, rtol=1e-2, atol=1e-3)  # Muon itself works in bfloat16


def check_that_it_is_an_instance_of_the_users_class() -> None:
    model = network()
    original = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(original, named_parameters=model.named_parameters())
    assert issubclass(type(optimizer), torch.optim.Adam)
    assert optimizer.param_groups is original.param_groups
    assert sorted(optimizer._parameter_names.values()) == sorted(n for n, _ in model.named_parameters())
    assert optimizer._handles == {}
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loss_of(model, batches(0, hvd.rank())).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.005
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    assert optimizer.state_dict()["state"][0]["step"] == state["state"][0]["step"] == 1
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


def check_step_hooks_run_once() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    optimizer.load_state_dict(optimizer.state_dict())
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    loss_of(model, batches(0, hvd.rank())).backward()
    optimizer.step()
    assert calls == ["before", "after"]


def check_gradients_are_reduced_when_backward_returns() -> None:
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    for step in range(3):
        optimizer.zero_grad(set_to_none=step == 1)
        alone.zero_grad()
        loss_of(model, batches(step, hvd.rank())).backward()
        loss_of(alone, batches(step)).backward()
        for a, b in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (model, alone)]
    torch.testing.assert_close(*norms)
    optimizer.synchronize()
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    with optimizer.skip_synchronize():
        optimizer.step()


def check_accumulation() -> None:
    for op in (hvd.Average, hvd.Sum):
        model, alone = network(), network()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=op, backward_passes_per_step=2)
        reference = sgd(alone.parameters())
        for step in range(3):
            for o in (optimizer, reference):
                o.zero_grad()
            for half in range(2):
                batch = batches(10 * step + half, hvd.rank())
                loss_of(model, batch).backward()
                scale = 1.0 if op == hvd.Average else hvd.size()
                (scale * loss_of(alone, batches(10 * step + half))).backward()
            optimizer.step()
            reference.step()
            same(model, alone)
    optimizer.set_backward_passes_per_step(1)
    assert optimizer.backward_passes_per_step == 1
    loss_of(model, batches(0, hvd.rank())).backward()
    loss_of(alone, batches(0)).backward()


def check_backward_twice_before_a_step() -> None:
    model, alone = network(), network()
    optimizer, reference = hvd.DistributedOptimizer(sgd(model.parameters())), sgd(alone.parameters())
    for m, o, rank in ((model, optimizer, hvd.rank()), (alone, reference, None)):
        for step in range(3):
            loss_of(m, batches(step, rank)).backward()
        o.step()
    same(model, alone)


def check_a_step_amid_an_accumulation() -> None:
    for passes in (1, 3):  # fewer than announced, and more
        model, alone = network(), network()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=2)
        reference = sgd(alone.parameters())
        for m, o, rank in ((model, optimizer, hvd.rank()), (alone, reference, None)):
            for step in range(passes):
                loss_of(m, batches(step, rank)).backward()
            o.step()
        same(model, alone)


def check_that_a_sum_is_not_reduced_twice() -> None:
    if hvd.size() == 1:
        return
    model, rank = network(), hvd.rank()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Sum)
    for _ in range(2):
        loss_of(model, batches(0, rank)).backward()
        before = [grad_of(p).clone() for p in model.parameters()]
        optimizer.zero_grad()  # so it is no repetition
    loss_of(model, batches(0, rank)).backward()
    assert all(torch.equal(grad_of(p), b) for p, b in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        loss_of(model, batches(1, rank)).backward()
    model.zero_grad()
    loss_of(model, batches(0, rank)).backward()
    assert all(torch.equal(grad_of(p), b) for p, b in zip(model.parameters(), before, strict=True))
    if rank == 0:
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            loss_of(model, batches(1, rank)).backward()
    else:
        model.zero_grad()
        with pytest.raises(hvd.HorovodInternalError, match=r"rank 0 on .* raised an error"):
            loss_of(model, batches(1, rank)).backward()


def check_sum_predivision_and_groups() -> None:
    size = hvd.size()
    trains_like_one(lambda p: torch.optim.SGD(p, lr=0.1), gradient_predivide_factor=float(size))
    trains_like_one(lambda p: torch.optim.SGD(p, lr=0.1), groups=2)
    trains_like_one(lambda p: torch.optim.SGD(p, lr=0.1), groups=2, gradient_predivide_factor=3.0)
    with pytest.warns(DeprecationWarning, match="older name of groups"):
        trains_like_one(lambda p: torch.optim.SGD(p, lr=0.1), num_groups=1)
    model, alone = network(), network()
    params = list(model.parameters())
    summing = torch.optim.SGD(params, lr=0.1 / size)
    optimizer = hvd.DistributedOptimizer(summing, op=hvd.Sum, groups=[[params[0], params[2]]])
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        for m, o, batch in ((model, optimizer, batches(step, hvd.rank())), (alone, reference, batches(step))):
            o.zero_grad()
            loss_of(m, batch).backward()
            o.step()
    same(model, alone)


def check_compression() -> None:
    trains_like_one(sgd, compression=hvd.Compression.fp16, tolerance=2e-2)
    trains_like_one(sgd, compression=hvd.Compression.bf16, tolerance=5e-2)


def check_a_compressor_of_the_users() -> None:
    class Flat:
        """Sends gradients as one dimension, scaled."""

        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
            return tensor.reshape(-1) * 4, tensor.shape

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: torch.Size) -> torch.Tensor:
            return tensor.reshape(ctx) / 4

    trains_like_one(sgd, compression=Flat)


def check_closures() -> None:
    for make in (
        lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ):
        model, alone = network(), network()
        losses: list[float] = []
        for m, o, rank in (
            (model, hvd.DistributedOptimizer(make(model.parameters())), hvd.rank()),
            (alone, make(alone.parameters()), None),
        ):
            for _ in range(2):

                def closure(m: torch.nn.Module = m, o: Any = o, rank: int | None = rank) -> torch.Tensor:
                    o.zero_grad()
                    loss = loss_of(m, batches(0, rank))
                    loss.backward()
                    return loss

                loss: Any = o.step(closure)
                losses.append(loss.item())
        same(model, alone, rtol=1e-5, atol=1e-7)
        assert losses[:2] == pytest.approx(losses[2:])


def check_lbfgs_in_another_order_is_refused_on_all_ranks() -> None:
    """It adds over all parameters, and another order makes other bits: which nobody would notice in a few steps."""
    if hvd.size() == 1:
        return
    for turned in (1, 0):
        model = network()
        params = list(model.parameters())[:: -1 if hvd.rank() == turned else 1]
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.LBFGS(params, max_iter=2), named_parameters=model.named_parameters()
        )

        def closure(m: torch.nn.Module = model, o: Any = optimizer) -> torch.Tensor:
            o.zero_grad()
            loss = loss_of(m, batches(0, hvd.rank()))
            loss.backward()
            return loss

        with pytest.raises((UsageError, MismatchError), match=r"in the same order on every rank|raised an error there"):
            optimizer.step(closure)
        hvd.barrier()


def check_the_loss_of_a_closure_is_that_whose_gradient_is_reduced() -> None:
    """A line search with sums of gradients that sees a mean of losses takes other steps, or none."""
    size, model, alone = hvd.size(), network(), network()
    original, reference = (
        torch.optim.LBFGS(m.parameters(), max_iter=4, line_search_fn="strong_wolfe") for m in (model, alone)
    )
    optimizer: Any = hvd.DistributedOptimizer(original, op=hvd.Sum)
    losses: list[list[float]] = []
    for m, o, rank in ((model, optimizer, hvd.rank()), (alone, reference, None)):

        def closure(m: torch.nn.Module = m, o: Any = o, rank: int | None = rank) -> torch.Tensor:
            o.zero_grad()
            loss = loss_of(m, batches(0, rank)) * (size if rank is None else 1)
            loss.backward()
            return loss

        losses.append([o.step(closure).item() for _ in range(2)])
    same(model, alone, rtol=1e-5, atol=1e-7)
    assert losses[0] == pytest.approx(losses[1])
    for op in (hvd.Min, hvd.Max, hvd.Product):
        optimizer = hvd.DistributedOptimizer(sgd(network().parameters()), op=op)
        with pytest.raises(ValueError, match=f"closure.*op={op.label}"):
            optimizer.step(lambda: 0.0)


def check_grad_scaler() -> None:
    model, alone = network().float(), network().float()
    optimizer, reference = hvd.DistributedOptimizer(sgd(model.parameters())), sgd(alone.parameters())
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    for step in range(4):
        for m, o, scaler, rank in zip((model, alone), (optimizer, reference), scalers, (hvd.rank(), None), strict=True):
            o.zero_grad()
            x, y = batches(step, rank)
            bad = step == 1 and (rank is None or rank == hvd.size() - 1)  # one rank's gradients overflow
            loss = loss_of(m, (x.float(), y.float())) * (float("inf") if bad else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(o)
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            scaler.step(o)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale() == (2.0**10 if step < 1 else 2.0**9)
        same(model, alone, rtol=1e-4, atol=1e-6)


def check_copies_are_refused_with_what_to_do_instead() -> None:
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for op in (hvd.Average, hvd.Adasum):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), op=op
        )
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda it: copy.deepcopy((model, it))):
            with pytest.raises(ValueError, match="load_state_dict"):
                copied(optimizer)
        twin = copy.deepcopy(model)
        other = hvd.DistributedOptimizer(
            torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9), twin.named_parameters(), op=op
        )
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for each, stepper in ((model, optimizer), (twin, other)):
            stepper.zero_grad()
            each(torch.full((1, 3), 1.0 + hvd.rank())).sum().backward()
            stepper.step()
        assert torch.equal(model.weight, twin.weight)
