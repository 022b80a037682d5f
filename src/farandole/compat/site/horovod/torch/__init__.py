"""``import horovod.torch as hvd``: ``farandole.torch`` with Horovod's results where they differ."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import farandole.torch as _derivatives
from horovod.torch import functions as functions
from horovod.torch import mpi_ops as mpi_ops
from horovod.torch import optimizer as optimizer
from horovod.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from horovod.torch.mpi_ops import allgather as allgather
from horovod.torch.mpi_ops import broadcast as broadcast
from horovod.torch.mpi_ops import grouped_allgather as grouped_allgather
from horovod.torch.mpi_ops import grouped_reducescatter as grouped_reducescatter
from horovod.torch.mpi_ops import reducescatter as reducescatter
from horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer

if not TYPE_CHECKING:
    __all__ = _derivatives.__all__

_SAME = ("compression", "elastic", "elastic.sampler", "elastic.state", "sync_batch_norm")
"""Submodules that scripts import from; the same module objects under both names."""

for _name in _SAME:
    _module = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"farandole.torch.{_name}")
    if "." not in _name:
        globals()[_name] = _module


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_derivatives, name)
    return found
