"""Farandole for PyTorch: the module that a training script imports.

import farandole.torch as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

# ruff: noqa: E402 (the garbage collector is off during the imports)
from __future__ import annotations

import gc as _gc
import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

_collects = _gc.isenabled()
try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "farandole.torch needs PyTorch, which is not installed here: pip install 'farandole[torch]'", name="torch"
    ) from error
else:
    _gc.disable()  # until the end of this file: a collection would scan all objects of torch for 0.1 s and free nothing

from farandole.runtime.collectives.ops import PUBLIC as _PUBLIC
from farandole.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from farandole.torch.mpi_ops import *  # noqa: F403
from farandole.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from farandole.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from farandole.torch.virtual_workers import VirtualWorkers as VirtualWorkers

if _TYPE_CHECKING:
    from farandole import data as data
    from farandole.torch import elastic as elastic
    from farandole.torch.checkpoints import Checkpoints as Checkpoints
    from farandole.torch.noise import NoiseScale as NoiseScale
    from farandole.torch.schedule import SamplesLR as SamplesLR

_LATER = {
    "Checkpoints": "farandole.torch.checkpoints",
    "NoiseScale": "farandole.torch.noise",
    "SamplesLR": "farandole.torch.schedule",
    "data": "farandole.data",
    "elastic": "farandole.torch.elastic",
}
"""Names that few scripts use; imported at first use."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _importlib.import_module(_LATER[name])
    found: object = getattr(module, name, module)
    globals()[name] = found
    return found


if _collects:
    _gc.enable()

if not _TYPE_CHECKING:  # type checkers and editors use the names imported above
    _own = ("DistributedOptimizer", "SyncBatchNorm", "VirtualWorkers", "broadcast_optimizer_state")
    __all__ = sorted([*_PUBLIC, *_own, *_LATER, "sparse_allreduce_async"])  # noqa: PLE0605
