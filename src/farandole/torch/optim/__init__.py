"""Optimizers for large batches; ``DistributedOptimizer`` wraps them like any other.

from farandole.torch import optim

optimizer = optim.LARS(model.parameters(), lr=3.2, momentum=0.9, weight_decay=1e-4)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
"""

from __future__ import annotations

from farandole.torch.optim.gradient_lag import GradientLag
from farandole.torch.optim.lamb import LAMB
from farandole.torch.optim.larc import LARC
from farandole.torch.optim.lars import LARS
from farandole.torch.optim.rmsprop_warmup import RMSpropWarmupSGD

__all__ = ["LAMB", "LARC", "LARS", "GradientLag", "RMSpropWarmupSGD"]
