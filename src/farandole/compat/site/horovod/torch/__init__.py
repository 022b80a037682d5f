"""``import horovod.torch as hvd``: everything is ``farandole.torch``'s."""

from __future__ import annotations

import importlib
import sys

from farandole.torch import *  # noqa: F403
from farandole.torch import __all__ as __all__

_SAME = (
    "compression",
    "elastic",
    "elastic.sampler",
    "elastic.state",
    "functions",
    "mpi_ops",
    "optimizer",
    "sync_batch_norm",
)
"""Submodules that scripts import from; they are the same objects under both names."""

for _name in _SAME:
    _module = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"farandole.torch.{_name}")
    if "." not in _name:
        globals()[_name] = _module
