"""Collectives that combine values: allreduce and reducescatter, in all their variants.

    loss = hvd.allreduce(loss, name="loss")

Common to all: tensors are of any dtype in ``farandole.collective.DType`` and any strides, in host memory. ``name``
identifies the call across ranks; calls without a name are matched by their order in the process set. ``op`` is one of
``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` and ``Adasum``; ``average`` is its older form.
Inputs are multiplied by ``prescale_factor``, results by ``postscale_factor``. ``_async`` variants return a handle for
``synchronize``, variants with a trailing underscore work in place. They raise ``ValueError`` for what cannot be right,
``HorovodInternalError`` for what went wrong between ranks, on every rank of the process set.

A ``Sum`` or ``Product`` of integers without factors wraps around, as in PyTorch. An ``Average`` of integers, and any
reduction of them with a factor, is exact, truncates toward zero after each step (factor, reduction and division,
factor), and ends at the limits of the dtype. Factors that are whole or 1/n are exact, others multiply in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from farandole.collective import Kind, ReduceOp, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch import autograd
from farandole.torch.adapter import handles, verbs
from farandole.torch.compression import Compression, CompressorLike


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Combine ``tensor`` over all ranks; returns a new tensor. Differentiable for Sum and Average.

    >>> hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum)     # on 2 ranks
    tensor([3.])
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    travelling, context = compression.compress(tensor)
    if autograd.wanted(travelling):
        reduced = autograd.apply(autograd.Allreduce, travelling, name, how, process_set)
    else:
        reduced = verbs.allreduce([travelling], name, how, process_set).run()[0]
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an ``allreduce``: ``synchronize`` of the returned handle gives the new tensor.

    >>> handle = hvd.allreduce_async(loss, name="loss")
    >>> mean = hvd.synchronize(handle)
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.allreduce([tensor], name, how, process_set).then(_first))


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """``allreduce`` in place: ``tensor`` holds the result and is returned.

    >>> hvd.allreduce_(statistics, name="statistics", op=hvd.Sum)
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return verbs.allreduce([tensor], name, how, process_set, in_place=True).run()[0]


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an ``allreduce_``; do not touch ``tensor`` before ``synchronize`` has returned.

    >>> handles = [hvd.allreduce_async_(t, name=name) for name, t in tensors.items()]
    >>> for handle in handles:
    ...     hvd.synchronize(handle)
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.allreduce([tensor], name, how, process_set, in_place=True).then(_first))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``allreduce`` of several tensors as one: none begins before all ranks have all of them. Dtypes may be mixed.

    >>> loss, accuracy = hvd.grouped_allreduce([loss, accuracy], name="metrics")
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    compressed = [compression.compress(t) for t in tensors]
    travelling = [t for t, _ in compressed]
    if autograd.wanted(*travelling):
        reduced = autograd.apply(autograd.GroupedAllreduce, name, how, process_set, *travelling)
    else:
        reduced = verbs.allreduce(travelling, name, how, process_set).run()
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, compressed, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a ``grouped_allreduce``: ``synchronize`` gives the list of new tensors.

    >>> handle = hvd.grouped_allreduce_async([loss, accuracy], name="metrics")
    >>> loss, accuracy = hvd.synchronize(handle)
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.allreduce(tensors, name, how, process_set))


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """``grouped_allreduce`` in place.

    >>> hvd.grouped_allreduce_([p.grad for p in model.parameters()], name="gradients")
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return verbs.allreduce(tensors, name, how, process_set, in_place=True).run()


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a ``grouped_allreduce_``; do not touch the tensors before ``synchronize`` has returned.

    >>> handle = hvd.grouped_allreduce_async_(tensors, name="tensors")
    >>> hvd.synchronize(handle)
    """
    how = reduction(average, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.allreduce(tensors, name, how, process_set, in_place=True))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to add up (or average) sparse COO tensors; call what is returned to get the result.

    >>> done = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
    >>> gradient = done()

    Ranks may have different numbers of values. Indices and values are gathered, so an index may occur several times
    in the result: call ``coalesce`` on it where that matters.
    """
    name = f"{name}.sparse"
    with verbs.telling(Kind.ALLGATHER, name, process_set):
        how = reduction(None, op).checked()
        if how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise UnsupportedError(
                f"sparse tensors are combined by Sum or Average, found {how.op.label}: use to_dense()"
            )
        if tensor.layout is not torch.sparse_coo:
            raise UsageError(
                f"sparse_allreduce_async of a tensor of layout {tensor.layout}: use to_sparse(), or allreduce"
            )
        entries = tensor if tensor.is_coalesced() else tensor.coalesce()
        parts = [entries.indices().t(), entries.values()]
    gathered = verbs.allgather(parts, name, process_set).begin()

    def finish() -> torch.Tensor:
        (every_index, _), (every_value, _) = gathered.wait()
        if how.op is ReduceOp.AVERAGE:
            every_value = every_value / len(process_set.ranks)
        return torch.sparse_coo_tensor(every_index.t(), every_value, tensor.shape, check_invariants=False)

    return finish


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Combine like ``allreduce``, and return this rank's share of dimension 0. Differentiable for Sum and Average.

    >>> hvd.reducescatter(torch.ones(5), op=hvd.Sum)    # on 2 ranks: 3 rows go to rank 0, 2 to rank 1
    tensor([2., 2., 2.])
    """
    [result] = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a ``reducescatter``: ``synchronize`` gives this rank's share.

    >>> share = hvd.synchronize(hvd.reducescatter_async(tensor, name="tensor"))
    """
    how = reduction(None, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.reducescatter([tensor], name, how, process_set).then(_first))


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter`` of several tensors as one.

    >>> shares = hvd.grouped_reducescatter([weights, biases], name="layer", op=hvd.Sum)
    """
    how = reduction(None, op, prescale_factor, postscale_factor)
    return scattered(tensors, name, compression, how, process_set, autograd.DERIVATIVE)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a ``grouped_reducescatter``: ``synchronize`` gives the list of shares.

    >>> shares = hvd.synchronize(hvd.grouped_reducescatter_async([weights, biases], name="layer"))
    """
    how = reduction(None, op, prescale_factor, postscale_factor)
    return handles.begin(verbs.reducescatter(tensors, name, how, process_set))


def scattered(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    compression: CompressorLike,
    how: Reduction,
    process_set: ProcessSet,
    factors: autograd.Factors,
) -> list[torch.Tensor]:
    """``grouped_reducescatter`` whose gradients have these factors."""
    compressed = [compression.compress(t) for t in tensors]
    travelling = [t for t, _ in compressed]
    if autograd.wanted(*travelling):
        reduced = autograd.apply(autograd.Reducescatter, name, how, process_set, factors, *travelling)
    else:
        reduced = verbs.reducescatter(travelling, name, how, process_set).run()
    return [compression.decompress(t, context) for t, (_, context) in zip(reduced, compressed, strict=True)]


def _first(results: list[torch.Tensor]) -> torch.Tensor:
    return results[0]
