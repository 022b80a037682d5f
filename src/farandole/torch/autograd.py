"""Collectives as differentiable functions.

With a loss L(r) on rank r, ``x.grad`` is the derivative of L(0) + L(1) + ... with respect to this rank's ``x``. So a
backward pass runs collectives too, and every member must run it. Horovod's gradients have other factors, which the
compatibility package ``horovod`` selects.
"""

from __future__ import annotations

from typing import Any

import torch

from farandole.adapters.torch import verbs
from farandole.collective import ReduceOp, Reduction
from farandole.gradients.factors import Factors, factor, require_linear
from farandole.runtime.session.process_sets import ProcessSet

_SUM = Reduction(ReduceOp.SUM)


def wanted(*tensors: torch.Tensor) -> bool:
    """True if autograd must record a call with these tensors."""
    return any(getattr(t, "requires_grad", False) for t in tensors) and torch.is_grad_enabled()


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Run ``function`` and let autograd record it."""
    return function.apply(*arguments)


def _grad_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.grad"


def _factor(power: int, process_set: ProcessSet) -> float:
    return factor(power, process_set, "farandole.torch")


class Allreduce(torch.autograd.Function):
    """Differentiable (grouped) allreduce; its backward pass applies the same reduction to the incoming gradients."""

    @staticmethod
    def forward(ctx: Any, name: str | None, how: Reduction, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        """Reduce all."""
        ctx.name, ctx.how, ctx.process_set = name, how, process_set
        return tuple(verbs.allreduce(tensors, name, how, process_set).run())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Reduce the gradients."""
        require_linear(ctx.how, "allreduce" if len(grads) == 1 else "grouped_allreduce")
        return None, None, None, *apply(Allreduce, _grad_name(ctx.name), ctx.how, ctx.process_set, *grads)


class Allgather(torch.autograd.Function):
    """Differentiable (grouped) allgather; each rank gets the sum over ranks of the gradients of its own rows."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, factors: Factors, *tensors: torch.Tensor) -> Any:
        """Concatenate."""
        gathered = verbs.allgather(tensors, name, process_set).run()
        ctx.name, ctx.process_set, ctx.factors = name, process_set, factors
        ctx.shapes, ctx.rows = [t.shape for t in tensors], [rows for _, rows in gathered]
        return tuple(tensor for tensor, _ in gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Send every rank the gradients of its rows, and add up the received ones."""
        by = _factor(ctx.factors.allgather, ctx.process_set)
        results = []
        for i, (grad, shape, rows) in enumerate(zip(grads, ctx.shapes, ctx.rows, strict=True)):
            name = None if ctx.name is None else f"{ctx.name}.grad{i}"
            received = apply(Alltoall, grad, rows, name, ctx.process_set)[0]
            results.append(_times(by, received.reshape(len(rows), *shape).sum(dim=0)))
        return None, None, None, *results


class Broadcast(torch.autograd.Function):
    """Differentiable broadcast; the root gets the sum of all gradients, the others get zero."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet, factors: Factors
    ) -> Any:
        """Copy from the root."""
        ctx.name, ctx.process_set, ctx.factors = name, process_set, factors
        ctx.is_root = process_set.ranks[process_set.rank() or 0] == root
        return verbs.broadcast([tensor], root, name, process_set).run()[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Sum the gradients for the root."""
        [total] = apply(Allreduce, _grad_name(ctx.name), _SUM, ctx.process_set, grads[0])
        by = _factor(ctx.factors.broadcast, ctx.process_set)
        return _times(by, total) if ctx.is_root else torch.zeros_like(total), None, None, None, None


class Alltoall(torch.autograd.Function):
    """Differentiable alltoall; gradients return to the senders. Returns the rows and their number per member."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: tuple[int, ...] | None, name: str | None, process_set: ProcessSet
    ) -> Any:
        """Exchange rows."""
        received, ctx.rows = verbs.alltoall(tensor, splits, name, process_set).run()
        ctx.name, ctx.process_set = name, process_set
        return received, ctx.rows

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Send the gradients back to the senders of their rows."""
        back = apply(Alltoall, grads[0], ctx.rows, _grad_name(ctx.name), ctx.process_set)[0]
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    """Differentiable (grouped) reducescatter; every rank gets back the gradients of all rows."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        how: Reduction,
        process_set: ProcessSet,
        factors: Factors,
        *tensors: torch.Tensor,
    ) -> Any:
        """Reduce and keep a share."""
        ctx.name, ctx.how, ctx.process_set, ctx.factors = name, how, process_set, factors
        ctx.scale = how.prescale * how.postscale
        if how.op is ReduceOp.AVERAGE:
            ctx.scale /= len(process_set.ranks)
        return tuple(verbs.reducescatter(tensors, name, how, process_set).run())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gather the gradients of all shares."""
        require_linear(ctx.how, "reducescatter")
        scale = ctx.scale * _factor(ctx.factors.reducescatter, ctx.process_set)
        gathered = apply(Allgather, _grad_name(ctx.name), ctx.process_set, ctx.factors, *grads)
        return None, None, None, None, *(g * scale for g in gathered)


def _times(factor: float, grad: torch.Tensor) -> torch.Tensor:
    return grad if factor == 1.0 else grad * factor
