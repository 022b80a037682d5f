"""Broadcasts of a training script's parameters, optimizer state and objects.

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Loading of optimizer state without a change of dtypes.

load_exactly(optimizer, state)              # a ``state_dict()`` of the same optimizer on another rank
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from farandole.adapters.torch import adapter
from farandole.errors import UnsupportedError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.mpi_ops import broadcast_parameters, ops
from farandole.torch.subclass import loaded_in_place


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load ``state`` by the optimizer's own method, but keep the dtype of every tensor in it.

    PyTorch casts them to the parameter's dtype. A rank that loads the state would then have other values than the rank
    that saved it: NAdam's ``mu_product`` is float32, even for bfloat16 weights.
    """
    with loaded_in_place(optimizer):  # scripts and schedulers may refer to the groups
        optimizer.load_state_dict(state)
    by_number = state.get("state", {})
    numbers = chain.from_iterable(group["params"] for group in state.get("param_groups", []))
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, param in zip(numbers, params, strict=False):
        if number in by_number and param in optimizer.state:
            _as_given(optimizer.state[param], by_number[number])


def _as_given(loaded: Any, given: Any) -> Any:
    """``loaded`` with the dtypes of ``given``, its source; dicts are changed in place."""
    if isinstance(loaded, torch.Tensor) and isinstance(given, torch.Tensor):
        is_cast = loaded.dtype is not given.dtype and loaded.shape == given.shape
        return given.to(loaded.device) if is_cast else loaded
    if isinstance(loaded, dict) and isinstance(given, dict):
        for key, value in loaded.items():
            loaded[key] = _as_given(value, given.get(key))
        return loaded
    if isinstance(loaded, list | tuple) and type(loaded) is type(given) and len(loaded) == len(given):
        children = list(map(_as_given, loaded, given))
        return type(loaded)(*children) if hasattr(loaded, "_fields") else type(loaded)(children)
    return loaded


__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

_leaves = Leaves(adapter)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001 (Horovod needs it to find sparse parameters)
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the optimizer state and hyper-parameters of the rank ``root_rank`` to every rank.

    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    No step is run: if the root's optimizer is new and without state, so are all after the call. ``model`` is accepted
    for compatibility. Raises ``ValueError`` for LBFGS, whose state is not a set of tensors per parameter.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "the state of torch.optim.LBFGS cannot be broadcast: broadcast the parameters and begin anew"
        )
    state = broadcast_tree(ops, _leaves, optimizer.state_dict, root_rank, "optimizer_state", process_set)
    load_exactly(optimizer, state)  # on the root, too: if a load resets something, it resets it on all ranks
