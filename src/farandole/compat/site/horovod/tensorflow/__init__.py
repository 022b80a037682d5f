"""``import horovod.tensorflow as hvd``: ``farandole.tensorflow`` with the gradients of Horovod."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import farandole.tensorflow as _derivatives
from horovod.tensorflow import mpi_ops as mpi_ops
from horovod.tensorflow.mpi_ops import allgather as allgather
from horovod.tensorflow.mpi_ops import allreduce as allreduce
from horovod.tensorflow.mpi_ops import broadcast as broadcast
from horovod.tensorflow.mpi_ops import grouped_allgather as grouped_allgather
from horovod.tensorflow.mpi_ops import grouped_allreduce as grouped_allreduce
from horovod.tensorflow.mpi_ops import grouped_reducescatter as grouped_reducescatter
from horovod.tensorflow.mpi_ops import reducescatter as reducescatter

if not TYPE_CHECKING:
    __all__ = _derivatives.__all__

_SAME = ("compression", "elastic", "functions")
"""Submodules that scripts import from; the same module objects under both names."""

for _name in _SAME:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"farandole.tensorflow.{_name}")


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_derivatives, name)
    return found
