"""Many workers in one pass: batch normalisation over groups of samples, as every worker normalises its own batch.

    model = grouped(seeded_model(plan, data), plan.worker_batch)
    train(model, in_one_pass(plan), data)           # on one process: what the workers of ``plan`` train, and faster

Nothing but batch normalisation makes a sample's gradient depend on the others of its worker, so this is the arithmetic
of ``hvd.VirtualWorkers`` in another order, and several times as fast: for searches, and to check the other one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import nn

from examples.bigearthnet.training import Plan


@final
class GroupedBatchNorm2d(nn.BatchNorm2d):
    """Normalises every ``group`` samples by their own statistics; running ones are the mean over the groups."""

    def __init__(self, channels: int, group: int) -> None:
        super().__init__(channels)
        self.group = group

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, channels, h, w), n a multiple of the group while training."""
        if not self.training:
            plain: torch.Tensor = super().forward(images)
            return plain
        apart = images.unflatten(0, (-1, self.group))
        variance, mean = torch.var_mean(apart, dim=(1, 3, 4), correction=0, keepdim=True)
        self._remember(mean.detach(), variance.detach(), self.group * images.shape[2] * images.shape[3])
        scale = self.weight[:, None, None] * torch.rsqrt(variance + self.eps)
        normal: torch.Tensor = (apart - mean) * scale + self.bias[:, None, None]
        return normal.flatten(0, 1)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean.mean(0).flatten(), self.momentum)
        self.running_var.lerp_(variance.mean(0).flatten() * (count / (count - 1)), self.momentum)


def grouped(model: nn.Module, group: int) -> nn.Module:
    """The model with all its batch normalisation over groups; it is changed, and its parameters are the same."""
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = GroupedBatchNorm2d(child.num_features, group)
            norm.load_state_dict(child.state_dict())
            setattr(model, name, norm)
        else:
            grouped(child, group)
    return model


def in_one_pass(plan: Plan) -> Plan:
    """The same steps of the same samples, by one worker."""
    return replace(plan, workers=1, worker_batch=plan.global_batch)
