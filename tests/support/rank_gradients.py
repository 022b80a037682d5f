"""Gradients that tell which rank they come from, for checks that run on several ranks."""

from __future__ import annotations

import torch

import farandole.torch as hvd


def gradient(rank: int, like: torch.Tensor) -> torch.Tensor:
    """Some gradient that depends on the rank."""
    return torch.arange(like.numel(), dtype=like.dtype).reshape(like.shape) + 10 * rank


def mean_over(ranks: list[int], like: torch.Tensor) -> torch.Tensor:
    """What remains of the gradients of some ranks, averaged over all."""
    return sum((gradient(r, like) for r in ranks), torch.zeros_like(like)) / hvd.size()


def backward(*params: torch.Tensor) -> None:
    """A backward pass that gives each parameter this rank's gradient."""
    torch.stack([(p * gradient(hvd.rank(), p.detach())).sum() for p in params]).sum().backward()


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    """Ones."""
    return [torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
