"""``import horovod.mxnet as hvd``: ``farandole.mxnet`` with Horovod's order of arguments."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import farandole.mxnet as _others
from horovod.mxnet import mpi_ops as mpi_ops
from horovod.mxnet.mpi_ops import *  # noqa: F403

if not TYPE_CHECKING:
    __all__ = _others.__all__

compression = sys.modules[f"{__name__}.compression"] = importlib.import_module("farandole.mxnet.compression")
functions = sys.modules[f"{__name__}.functions"] = importlib.import_module("farandole.runtime.collectives.objects")


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_others, name)
    return found
