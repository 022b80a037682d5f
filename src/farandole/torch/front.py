"""Putting a class of ours before the class of a user's optimizer.

larc = put_before(LARCOptimizer, torch.optim.SGD(params, lr=0.1))
isinstance(larc, torch.optim.SGD)                           # True
"""

from __future__ import annotations

from typing import Any

import torch


def put_before(front: type[torch.optim.Optimizer], optimizer: torch.optim.Optimizer) -> Any:
    """A new object of both classes, whose state is that of ``optimizer``; ``front`` comes first."""
    cls: Any = type(type(optimizer).__name__, (front, type(optimizer)), {})
    fronted = cls.__new__(cls)
    fronted.__dict__.update(optimizer.__dict__)
    fronted.__dict__.pop("step", None)  # a scheduler has put its own there, which would bypass ours
    return fronted
