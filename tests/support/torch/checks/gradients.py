"""Checks of the collectives' gradients against finite differences of what all ranks compute together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import farandole.torch as hvd

STEP = 1e-6


def inputs(rank: int, *shape: int) -> torch.Tensor:
    """This rank's input."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7 + rank))


def agrees(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> None:
    """Compare ``x.grad`` on every rank with finite differences of the sum of all ranks' losses.

    All ranks go through the elements of the inputs of four ranks in the same order, and only one moves its own.
    """

    def loss(x: torch.Tensor) -> torch.Tensor:
        y = function(x)
        weights = torch.cos(torch.arange(y.numel(), dtype=torch.float64) + hvd.rank()).reshape(y.shape)
        return (weights * y * y).sum()

    mine = inputs(hvd.rank(), *shape).requires_grad_()
    loss(mine).backward()
    assert mine.grad is not None
    expected = torch.zeros(mine.numel(), dtype=torch.float64)
    most = int(hvd.allreduce(torch.tensor(mine.numel()), op=hvd.Max))
    for mover in sorted({0, min(1, hvd.size() - 1), hvd.size() // 2, hvd.size() - 1}):
        for i in range(most):
            totals = []
            for sign in (1, -1):
                moved = mine.detach().clone()
                if mover == hvd.rank() and i < moved.numel():
                    moved.view(-1)[i] += sign * STEP
                totals.append(hvd.allreduce(loss(moved), op=hvd.Sum))
            if mover == hvd.rank() and i < mine.numel():
                expected[i] = (totals[0] - totals[1]) / (2 * STEP)
        if mover == hvd.rank():
            torch.testing.assert_close(mine.grad, expected.reshape(mine.shape), rtol=1e-5, atol=1e-6)


def check_allreduce() -> None:
    agrees(lambda x: hvd.allreduce(x, op=hvd.Sum), 3)
    agrees(lambda x: hvd.allreduce(x, name="mean", prescale_factor=0.5, postscale_factor=3.0), 2, 2)
    agrees(lambda x: torch.cat(hvd.grouped_allreduce([x, 2 * x], op=hvd.Average)), 2)
    agrees(lambda x: hvd.allreduce(x.t().expand(2, 2, 1), op=hvd.Sum), 1, 2)


def check_allgather() -> None:
    agrees(hvd.allgather, hvd.rank() + 1, 2)
    agrees(lambda x: hvd.allgather(x[:0] if hvd.rank() == 0 else x, name="gather"), 2)
    agrees(lambda x: torch.cat([g.reshape(-1) for g in hvd.grouped_allgather([x, x[:1]])]), 2, 1)
    agrees(lambda x: hvd.allgather(x.sum()), 2)


def check_broadcast() -> None:
    agrees(lambda x: hvd.broadcast(x, root_rank=hvd.size() - 1), 3)


def check_alltoall() -> None:
    size = hvd.size()
    agrees(hvd.alltoall, size)  # type: ignore[arg-type] # without splits: a tensor
    splits = [(hvd.rank() + r) % 2 + 1 for r in range(size)]
    agrees(lambda x: hvd.alltoall(x, splits=splits)[0], sum(splits), 1)


def check_reducescatter() -> None:
    agrees(lambda x: hvd.reducescatter(x, op=hvd.Sum), hvd.size() + 1)
    agrees(lambda x: hvd.reducescatter(x, op=hvd.Average, prescale_factor=2.0), hvd.size())
    agrees(lambda x: torch.cat(hvd.grouped_reducescatter([x, x], op=hvd.Sum)), hvd.size())


def check_second_derivatives() -> None:
    x = inputs(hvd.rank(), 3).requires_grad_()
    y = hvd.allreduce(x, op=hvd.Sum).pow(3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.sum().backward()
    total = sum(inputs(r, 3) for r in range(hvd.size()))
    torch.testing.assert_close(x.grad, hvd.size() ** 2 * 6 * total)


def check_that_other_reductions_have_no_gradient() -> None:
    x = torch.ones(2, requires_grad=True)
    for op in (hvd.Max, hvd.Product):
        y = hvd.allreduce(x, op=op)
        with pytest.raises(ValueError, match="op=Sum and op=Average"):
            y.sum().backward()
