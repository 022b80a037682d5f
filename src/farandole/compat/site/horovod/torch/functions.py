"""Broadcasts of ``farandole.torch.functions``; like in Horovod, a new optimizer gets zero gradients."""

from __future__ import annotations

import torch

from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch import functions
from farandole.torch.functions import allgather_object, broadcast_object, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """``farandole.torch.broadcast_optimizer_state``.

    If the optimizer had no state here, every parameter that requires a gradient has a gradient of zeros afterwards:
    sparse for ``SparseAdam``, and for ``SGD`` if it is of a sparse embedding of ``model``.
    """
    is_fresh = not optimizer.state
    functions.broadcast_optimizer_state(optimizer, root_rank, model, process_set)
    if not is_fresh:
        return
    sparse = _sparse_ids(model) if isinstance(optimizer, torch.optim.SGD) else set()
    for param in (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad):
        zeros = torch.zeros_like(param)
        is_sparse = isinstance(optimizer, torch.optim.SparseAdam) or id(param) in sparse
        param.grad = zeros.to_sparse() if is_sparse else zeros


def _sparse_ids(model: torch.nn.Module | None) -> set[int]:
    modules = model.modules() if model is not None else ()
    embeddings = [m for m in modules if isinstance(m, torch.nn.Embedding) and m.sparse]
    return {id(p) for m in embeddings for p in m.parameters()}
