"""Checks of ``SyncBatchNorm`` and of the broadcasts of parameters and optimizer state."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch

import farandole.torch as hvd


def rows_of(rank: int) -> int:
    """Batches differ between ranks; with more than two ranks one is empty."""
    return 0 if rank == 2 else 3 + rank


def batch(rank: int, *rest: int) -> torch.Tensor:
    """One rank's batch, far from zero: sums of squares would lose the variance."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(rows_of(rank), 4, *rest, dtype=torch.float64, generator=generator) + 1e4


def check_batch_norm_over_the_batches_of_all_ranks() -> None:
    for momentum, affine, rest in ((0.1, True, ()), (None, True, (3,)), (0.3, False, (2, 5))):
        synced = hvd.SyncBatchNorm(4, momentum=momentum, affine=affine).double()
        alone = (torch.nn.BatchNorm1d if len(rest) < 2 else torch.nn.BatchNorm2d)(4, momentum=momentum, affine=affine)
        alone = alone.double()
        for step in range(2):
            mine = batch(hvd.rank(), *rest).requires_grad_()
            every = torch.cat([batch(r, *rest) for r in range(hvd.size())]).requires_grad_()
            weights = torch.cos(torch.arange(every.numel(), dtype=torch.float64)).reshape(every.shape)
            begin = sum(rows_of(r) for r in range(hvd.rank()))
            own = slice(begin, begin + rows_of(hvd.rank()))
            output, expected = synced(mine), alone(every)
            torch.testing.assert_close(output, expected[own])
            (output * output * weights[own]).sum().backward()
            (expected * expected * weights).sum().backward()
            assert every.grad is not None
            torch.testing.assert_close(mine.grad, every.grad[own], rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(synced.running_mean, alone.running_mean)
            torch.testing.assert_close(synced.running_var, alone.running_var)
            assert synced.num_batches_tracked == step + 1
        for ours, theirs in zip(synced.parameters(), alone.parameters(), strict=True):
            assert ours.grad is not None
            total = hvd.allreduce(ours.grad, op=hvd.Sum)
            torch.testing.assert_close(total, theirs.grad, rtol=1e-5, atol=1e-7)
        synced.eval()
        alone.eval()
        torch.testing.assert_close(synced(mine), alone(mine))


def derivatives_of_batch_norm(norm: Any, x: torch.Tensor, rows: slice, affine: list[Any]) -> list[torch.Tensor]:
    """By ``rows`` of the input and by what is affine, from first to third order."""
    weights = torch.cos(torch.arange(x.numel(), dtype=torch.float64)).reshape(x.shape)[rows]
    own = x[rows].clone().requires_grad_()
    loss = (norm(own).sin() * weights).sum()
    found: list[torch.Tensor] = []
    for _ in range(3):
        derivatives = torch.autograd.grad(loss, [own, *affine], create_graph=True)
        found += derivatives
        loss = (derivatives[0].square() * weights).sum()
    return found


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The formula, as PyTorch differentiates it."""
    others = [0, *range(2, x.dim())]
    centred = x - x.mean(others, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(others, keepdim=True) + 1e-5) * weight + bias


def check_that_gradients_of_a_batch_norm_can_be_differentiated_again() -> None:
    """As those of the formula over all rows; from the third order on, those of ``torch.nn.BatchNorm1d`` are others."""
    begin = sum(rows_of(r) for r in range(hvd.rank()))
    own = slice(begin, begin + rows_of(hvd.rank()))
    if hvd.size() == 1:  # then it is that layer
        return
    for rest in ((), (2, 3)):
        layer = hvd.SyncBatchNorm(4).double()
        weight, bias = (torch.nn.Parameter(each.detach().reshape(4, *[1] * len(rest))) for each in layer.parameters())
        formula = partial(batch_norm, weight=weight, bias=bias)
        x = torch.cat([batch(r, *rest) - 1e4 for r in range(hvd.size())])
        ours = derivatives_of_batch_norm(layer, x, own, [*layer.parameters()])
        theirs = derivatives_of_batch_norm(formula, x, slice(None), [weight, bias])
        for i, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
            total = hvd.allreduce(found.detach(), op=hvd.Sum).reshape(expected.shape) if i % 3 else found
            torch.testing.assert_close(total, expected if i % 3 else expected[own], rtol=1e-6, atol=1e-8)


def check_batch_norm_of_a_set_that_is_not_registered_is_refused() -> None:
    layer = hvd.SyncBatchNorm(4, process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match=r"SyncBatchNorm: .* is not registered in this job"):
        layer(torch.ones(3, 4))
    layer.eval()(torch.ones(3, 4))


def check_batch_norm_in_half_precision_and_without_running_statistics() -> None:
    layer = hvd.SyncBatchNorm(4, track_running_stats=False)
    x = (torch.randn(8, 4) * 3).bfloat16()
    output = layer(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(hvd.allreduce(output.float().mean(0).detach()), torch.zeros(4), rtol=0.0, atol=2e-2)
    layer.eval()
    torch.testing.assert_close(layer(x.float()).mean(0), torch.zeros(4), rtol=0.0, atol=1e-5)


def check_two_batch_norms_and_process_sets() -> None:
    alone = hvd.add_process_set([0]) if hvd.size() > 1 else hvd.global_process_set
    model = torch.nn.Sequential(hvd.SyncBatchNorm(2), torch.nn.Linear(2, 2), hvd.SyncBatchNorm(2, process_set=alone))
    model(torch.randn(5, 2)).sum().backward()
    local = torch.randn(6, 2) + hvd.rank()
    torch.testing.assert_close(model[2](local), torch.nn.BatchNorm1d(2)(local))
    hvd.barrier()
    if hvd.size() > 1:
        hvd.remove_process_set(alone)


def check_copies_of_a_batch_norm() -> None:
    layer = hvd.SyncBatchNorm(2)
    copies = (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)))
    for each in copies:
        assert each.process_set is hvd.global_process_set
        each(torch.randn(3, 2))
    alone = hvd.ProcessSet([0])
    assert copy.deepcopy(alone) is alone
    assert pickle.loads(pickle.dumps(alone)).ranks == [0]


def check_batch_norm_refuses_other_shapes() -> None:
    for wrong in (torch.ones(3), torch.ones(2, 5)):
        with pytest.raises(ValueError, match=r"\(N, 4, \.\.\.\)"):
            hvd.SyncBatchNorm(4)(wrong)


def check_broadcast_of_parameters() -> None:
    root = hvd.size() - 1
    for give in (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: m.parameters(),
        lambda m: list(m.named_parameters()),
    ):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        with torch.no_grad():
            for param in model.parameters():
                param.fill_(hvd.rank())
        hvd.broadcast_parameters(give(model), root_rank=root)
        assert all((p == root).all() for p in model.parameters())
        assert all(p.requires_grad for p in model.parameters())
    transposed = torch.full((3, 2), float(hvd.rank())).t()
    hvd.broadcast_parameters([("t", transposed)], root_rank=root)
    assert (transposed == root).all()
    with pytest.raises(ValueError, match="'x' is a int"):
        hvd.broadcast_parameters({"x": 3}, root_rank=0)  # type: ignore[arg-type]


def trained(make: type[torch.optim.Optimizer], steps: int, **options: Any) -> torch.optim.Optimizer:
    """An optimizer that has made some steps alone."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters(), **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    return optimizer


def check_broadcast_of_optimizer_state() -> None:
    for make, options in (
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
        (torch.optim.Adagrad, {"lr": 0.1}),
    ):
        for steps in (0, 2):
            mine = steps if hvd.rank() == 0 else 1  # the root may be ahead of the others, or behind
            optimizer = trained(make, mine, **{**options, "lr": 0.1 * (1 + hvd.rank())})
            before = copy.deepcopy(optimizer.state_dict())
            params = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            state = optimizer.state_dict()
            assert state["param_groups"][0]["lr"] == pytest.approx(0.1)
            every = hvd.allgather_object(state)
            torch.testing.assert_close(every, [every[0]] * hvd.size())
            if hvd.rank() == 0:
                torch.testing.assert_close(state, before)
            after = optimizer.param_groups[0]["params"]
            assert all(torch.equal(p, q) for p, q in zip(params, after, strict=True))
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))]), root_rank=0)


def check_a_distributed_optimizers_state_is_broadcast_too() -> None:
    optimizer = hvd.DistributedOptimizer(trained(torch.optim.Adam, hvd.rank(), lr=0.1))
    hvd.broadcast_optimizer_state(optimizer, root_rank=hvd.size() - 1)
    assert len(optimizer.state) == (2 if hvd.size() > 1 else 0)
