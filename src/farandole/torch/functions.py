"""Broadcasts of a training script's parameters, optimizer state and objects.

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

import torch

from farandole.adapters.torch import adapter
from farandole.errors import UnsupportedError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.exact_load import load_exactly
from farandole.torch.mpi_ops import broadcast_parameters, ops

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
