"""Batch normalization over the batches of all ranks.

model = torch.nn.Sequential(torch.nn.Linear(8, 16), hvd.SyncBatchNorm(16), torch.nn.ReLU())
"""

from __future__ import annotations

import itertools
from typing import Any, final

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.adapters.torch import verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.gradients.shard_reducer import open_shards
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.autograd import Allreduce, apply

_SUM = Reduction(ReduceOp.SUM)
_numbers = itertools.count()


@final
class SyncBatchNorm(_BatchNorm):
    """``BatchNorm`` of any dimension with statistics over the batches of all ranks, in training mode.

    >>> layer = hvd.SyncBatchNorm(16)
    >>> layer(torch.randn(32, 16, 7, 7)).shape
    torch.Size([32, 16, 7, 7])

    Inputs have shape (N, C, ...); N and the other dimensions may differ between ranks, and may be 0. All ranks of
    ``process_set`` must make their layers in the same order and run them equally often, forward and backward.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self._label = f"sync_batch_norm.{next(_numbers)}"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (the name in PyTorch)
        """Normalize ``input``; the shape is unchanged."""
        self._check_input_dim(input)
        if not self.training or not takes_part(self.process_set, "SyncBatchNorm") or len(self.process_set.ranks) == 1:
            alone: torch.Tensor = super().forward(input)
            return alone
        if open_shards:
            raise UsageError(
                "SyncBatchNorm within shards() would normalise over those that ranks happen to compute at a time: use "
                "torch.nn.BatchNorm, and give the model to VirtualWorkers, which averages the statistics of all shards"
            )
        output, mean, variance, count = apply(
            _Normalise, input, self.weight, self.bias, self.eps, self._label, self.process_set
        )
        if self.track_running_stats:
            self._track(mean.detach(), variance.detach() * (count / max(count - 1.0, 1.0)))
        result: torch.Tensor = output
        return result

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 (the name in PyTorch)
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise UsageError(
                f"SyncBatchNorm({self.num_features}) takes inputs of shape (N, {self.num_features}, ...), "
                f"found {tuple(input.shape)}"
            )

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        momentum = self._advance()
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    def _advance(self) -> float:
        """Count a batch; return the weight of its statistics (``momentum=None``: a plain mean over batches)."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum


class _Normalise(torch.autograd.Function):
    """Normalize by the statistics of all ranks; returns the output, and mean, variance and row count of all batches."""

    # The statistics are outputs, because ``backward`` uses them: under double backward it gets their gradients.

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,  # noqa: A002 (the name in PyTorch)
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        label: str,
        process_set: ProcessSet,
    ) -> Any:
        """See the class."""
        x = _by_channel(input)
        mean, variance, count = _all_statistics(x, label, process_set)
        normalised = (x - mean) * torch.rsqrt(variance + eps)
        output = normalised if weight is None or bias is None else normalised * weight.to(x.dtype) + bias.to(x.dtype)
        ctx.save_for_backward(input, mean, variance, weight)
        ctx.count, ctx.eps, ctx.label, ctx.process_set = count, eps, label, process_set
        ctx.set_materialize_grads(False)
        return _like(output, input), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradient of batch normalisation (Ioffe & Szegedy 2015, section 3), with sums over all ranks.

        The gradients of weight and bias are this rank's own; the optimizer reduces them like all others.
        """
        input, mean, variance, weight = ctx.saved_tensors  # noqa: A001 (the name in PyTorch)
        x, scale = _by_channel(input), torch.rsqrt(variance + ctx.eps)
        grad = torch.zeros_like(x) if grads[0] is None else _by_channel(grads[0])
        normalised = (x - mean) * scale
        parts = [grad.sum(0), (grad * normalised).sum(0)]
        if any(each is not None for each in grads[1:3]):
            parts += [torch.zeros_like(mean) if each is None else each for each in grads[1:3]]
        [sums] = apply(Allreduce, f"{ctx.label}.backward", _SUM, ctx.process_set, torch.cat(parts))
        mean_bias, mean_weight, *of_statistics = (sums / ctx.count).chunk(len(parts))
        own = (grad - mean_bias - normalised * mean_weight) * scale
        own = own if weight is None else own * weight.to(x.dtype)
        if of_statistics:
            own = own + of_statistics[0] + 2.0 * of_statistics[1] * (x - mean)
        of_affine = (None, None) if weight is None else (parts[1].to(weight.dtype), parts[0].to(weight.dtype))
        return _like(own, input), *of_affine, None, None, None


def _all_statistics(x: torch.Tensor, label: str, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean, biased variance and number of rows over all ranks.

    Combines every rank's mean and sum of squared deviations (Chan, Golub & LeVeque 1983, equation 2.1 for many parts):
    no cancellation between large sums of squares.
    """
    rows, channels = x.shape
    variance, mean = torch.var_mean(x, dim=0, correction=0) if rows else (x.new_zeros(channels), x.new_zeros(channels))
    mine = torch.cat([mean, variance, x.new_full((1,), rows)])
    [(every, _)] = verbs.allgather([mine[None]], f"{label}.forward", process_set).run()
    counts = every[:, -1:].to(torch.float64)
    count = float(counts.sum())
    if not count:
        raise UsageError(f"{label}: the batches of all ranks are empty, there is nothing to normalise")
    share = (counts / count).to(x.dtype)
    means, variances = every[:, :channels], every[:, channels:-1]
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean).square())).sum(0), count


def _by_channel(tensor: torch.Tensor) -> torch.Tensor:
    """(N, C, ...) as (rows, C), in at least float32."""
    flat = tensor.movedim(1, -1).reshape(-1, tensor.shape[1])
    return flat.to(torch.promote_types(tensor.dtype, torch.float32))


def _like(rows: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_by_channel``."""
    shape = tensor.movedim(1, -1).shape
    return rows.reshape(shape).movedim(-1, 1).to(tensor.dtype)
