"""Broadcasts of what a training script has: parameters, optimizer state, objects.

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch

from farandole.errors import MismatchError, UnsupportedError, UsageError
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.collectives.verbs import Pending
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adapter import verbs
from farandole.torch.trees import TensorPlaceholder, replace

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

Parameters: TypeAlias = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor] | torch.Tensor]


def broadcast_parameters(params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite tensors with those of the rank ``root_rank``.

    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    ``params`` is a ``state_dict()``, ``named_parameters()``, ``parameters()``, or a list of tensors or (name, tensor)
    pairs. All ranks of ``process_set`` give the same names.
    """
    pending: dict[str, Pending[Any]] = {}
    error: MismatchError | UsageError | None = None
    for name, tensor in _named(params):
        try:
            request = verbs.broadcast([tensor], root_rank, f"parameter.{name}", process_set, in_place=True)
            pending[name] = request.begin()
        except UsageError as found:
            error = error or found
    begun = set(pending)
    try:
        while pending:
            pending.pop(next(iter(pending))).wait()
    except MismatchError as found:
        error = error or found
    if error is not None:
        _collect(pending, begun, process_set)
        raise error


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,  # noqa: ARG001 (Horovod needs it to find sparse parameters)
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the optimizer state and the hyper-parameters of the rank ``root_rank``.

    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    Nothing is stepped: a fresh optimizer at the root makes all of them fresh. ``model`` is accepted for compatibility.
    Raises ``ValueError`` for LBFGS, whose state is no set of tensors per parameter.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "the state of torch.optim.LBFGS cannot be broadcast: broadcast the parameters and begin anew"
        )
    is_root = process_set.included() and process_set.ranks[process_set.rank() or 0] == root_rank
    tensors: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> TensorPlaceholder:
        tensors.append(tensor)
        return TensorPlaceholder.of(tensor)

    def make(placeholder: TensorPlaceholder) -> torch.Tensor:
        tensors.append(placeholder.empty())
        return tensors[-1]

    mine = replace(optimizer.state_dict(), torch.Tensor, take) if is_root else None
    theirs = broadcast_object(mine, root_rank, "optimizer_state", process_set)
    state = None if is_root else replace(theirs, TensorPlaceholder, make)
    broadcast_parameters([(f"optimizer_state.{i}", t) for i, t in enumerate(tensors)], root_rank, process_set)
    if state is not None:
        optimizer.load_state_dict(state)


def _collect(pending: Mapping[str, Pending[Any]], begun: set[str], process_set: ProcessSet) -> None:
    """Wait for what all members have begun besides a broadcast that has failed on all: its names are free again."""
    everywhere = begun.intersection(*allgather_object(begun, "broadcast_parameters.begun", process_set))
    for name, each in pending.items():
        if name in everywhere:
            with contextlib.suppress(MismatchError):
                each.wait()


def _named(params: Parameters) -> list[tuple[str, torch.Tensor]]:
    pairs: list[Any] = list(params.items() if isinstance(params, Mapping) else params)
    named = [p if isinstance(p, tuple) and len(p) == 2 else (f"number{i}", p) for i, p in enumerate(pairs)]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(
                f"broadcast_parameters: {name!r} is a {type(tensor).__name__}, expected a tensor: "
                "give a state_dict(), named_parameters(), parameters(), or a list of tensors or (name, tensor) pairs"
            )
    return named
