"""Collectives that move values without combining them: allgather, broadcast and alltoall.

    everything = hvd.allgather(mine, name="predictions")

What is said of names, dtypes, variants and errors in ``farandole.torch.reductions`` holds here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch import autograd
from farandole.torch.adapter import handles, verbs

Received: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along dimension 0, where their lengths may differ. Differentiable.

    >>> hvd.allgather(torch.full([1 + hvd.rank()], hvd.rank()))     # on 2 ranks
    tensor([0, 1, 1])
    """
    [result] = grouped_allgather([tensor], name, process_set)
    return result


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin an ``allgather``: ``synchronize`` of the returned handle gives the tensor.

    >>> everything = hvd.synchronize(hvd.allgather_async(mine, name="predictions"))
    """
    return handles.begin(verbs.allgather([tensor], name, process_set).then(lambda results: results[0][0]))


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """``allgather`` of several tensors as one: none begins before all ranks have all of them. Dtypes may be mixed.

    >>> predictions, labels = hvd.grouped_allgather([predictions, labels], name="evaluation")
    """
    return gathered(tensors, name, process_set, autograd.DERIVATIVE)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a ``grouped_allgather``: ``synchronize`` gives the list of tensors.

    >>> predictions, labels = hvd.synchronize(hvd.grouped_allgather_async([predictions, labels]))
    """
    return handles.begin(verbs.allgather(tensors, name, process_set).then(lambda results: [t for t, _ in results]))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return what ``tensor`` is on the rank ``root_rank`` (a global rank, whatever the process set). Differentiable.

    >>> hvd.broadcast(torch.tensor([hvd.rank()]), root_rank=1)
    tensor([1])
    """
    return copied(tensor, root_rank, name, process_set, autograd.DERIVATIVE)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a ``broadcast``: ``synchronize`` gives the new tensor.

    >>> tensor = hvd.synchronize(hvd.broadcast_async(tensor, root_rank=0))
    """
    return handles.begin(verbs.broadcast([tensor], root_rank, name, process_set).then(lambda results: results[0]))


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """``broadcast`` in place: ``tensor`` is overwritten on every rank but the root, and returned.

    >>> hvd.broadcast_(model.weight.data, root_rank=0)
    """
    return verbs.broadcast([tensor], root_rank, name, process_set, in_place=True).run()[0]


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin a ``broadcast_``; do not touch ``tensor`` before ``synchronize`` has returned.

    >>> hvd.synchronize(hvd.broadcast_async_(model.weight.data, root_rank=0))
    """
    request = verbs.broadcast([tensor], root_rank, name, process_set, in_place=True)
    return handles.begin(request.then(lambda results: results[0]))


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Received:
    """Send ``splits[i]`` rows of ``tensor`` to member ``i``, return the rows received in member order. Differentiable.

    >>> rows, counts = hvd.alltoall(torch.arange(3), splits=[1, 2])     # on 2 ranks, rank 0:
    (tensor([0, 0]), tensor([1, 1]))

    Without ``splits`` dimension 0 is cut evenly, and the rows alone are returned; with them, also their number from
    each member (int32).
    """
    rows = _rows(splits)
    if autograd.wanted(tensor):
        received, counts = autograd.apply(autograd.Alltoall, tensor, rows, name, process_set)
    else:
        received, counts = verbs.alltoall(tensor, rows, name, process_set).run()
    return _received(received, counts, with_counts=rows is not None)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an ``alltoall``: ``synchronize`` gives what it returns.

    >>> rows, counts = hvd.synchronize(hvd.alltoall_async(tensor, splits=[1, 2]))
    """
    rows = _rows(splits)
    request = verbs.alltoall(tensor, rows, name, process_set)
    return handles.begin(request.then(lambda result: _received(*result, with_counts=rows is not None)))


def gathered(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, factors: autograd.Factors
) -> list[torch.Tensor]:
    """``grouped_allgather`` whose gradients have these factors."""
    if autograd.wanted(*tensors):
        return list(autograd.apply(autograd.Allgather, name, process_set, factors, *tensors))
    return [tensor for tensor, _ in verbs.allgather(tensors, name, process_set).run()]


def copied(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet, factors: autograd.Factors
) -> torch.Tensor:
    """``broadcast`` whose gradients have these factors."""
    if autograd.wanted(tensor):
        result: torch.Tensor = autograd.apply(autograd.Broadcast, tensor, root_rank, name, process_set, factors)
        return result
    return verbs.broadcast([tensor], root_rank, name, process_set).run()[0]


def _rows(splits: torch.Tensor | Sequence[int] | None) -> tuple[int, ...] | None:
    if splits is None:
        return None
    return tuple(int(s) for s in (splits.tolist() if isinstance(splits, torch.Tensor) else splits))


def _received(tensor: torch.Tensor, counts: tuple[int, ...], *, with_counts: bool) -> Received:
    return (tensor, torch.tensor(counts, dtype=torch.int32)) if with_counts else tensor
