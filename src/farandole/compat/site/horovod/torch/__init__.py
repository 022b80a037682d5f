"""``import horovod.torch as hvd``: everything is ``farandole.torch``'s."""

from __future__ import annotations

import importlib
import sys

from farandole.torch import *  # noqa: F403
from farandole.torch import __all__ as __all__
from horovod._absent import explain

_SAME = ("compression", "functions", "mpi_ops", "optimizer", "sync_batch_norm")
"""Submodules that scripts import from; they are the same objects under both names."""

for _name in _SAME:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"farandole.torch.{_name}")


def __getattr__(name: str) -> object:
    """``hvd.elastic`` says why it is missing."""
    if name == "elastic":
        raise AttributeError(explain(f"{__name__}.elastic"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
