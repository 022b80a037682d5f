"""Reductions of sparse tensors; only for PyTorch.

done = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from farandole.adapters.torch import verbs
from farandole.collective import Kind, ReduceOp
from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to sum (or average) sparse COO tensors; call the returned function to get the result.

    >>> done = hvd.sparse_allreduce_async(embedding.weight.grad, name="embedding", op=hvd.Average)
    >>> gradient = done()

    Ranks may have different numbers of values. Indices and values are gathered, so an index may occur several times in
    the result: call ``coalesce`` on the result if that matters.
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
