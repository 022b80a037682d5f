"""All-reduce of sparse tensors (COO): gathers all members' rows, and sums rows with the same index."""

from __future__ import annotations

import struct

import torch

from farandole.engines.engine import Engine
from farandole.errors import UnsupportedError
from farandole.torch.distributed.tensors import KINDS, FlatTensor, kind_of

_COUNT = struct.Struct("=q")


def reduce_sparse(engine: Engine, tensor: torch.Tensor, op: object) -> torch.Tensor:
    """Sum or average of all members' ``tensor``. Collective; raises ``UnsupportedError`` for other operations."""
    if kind_of(op) not in (KINDS.SUM, KINDS.AVG):
        raise UnsupportedError(f"{kind_of(op).name} of sparse tensors: use SUM or AVG, or pass tensor.to_dense()")
    mine = tensor.detach().coalesce()
    counts = [_COUNT.unpack(each.ljust(8, b"\0"))[0] for each in engine.gather_small(_COUNT.pack(mine._nnz()))]
    indices = _gathered(engine, mine.indices().t().contiguous(), counts).t()
    values = _gathered(engine, mine.values(), counts)
    found = torch.sparse_coo_tensor(indices, values, tensor.shape).coalesce()
    return found / engine.group.size if kind_of(op) == KINDS.AVG else found


def _gathered(engine: Engine, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """Rows of all members; ``counts``: number of rows of each."""
    given, width = FlatTensor(rows), rows[:1].numel() if len(rows) else rows.new_empty((1, *rows.shape[1:])).numel()
    whole = FlatTensor(rows.new_empty((sum(counts), *rows.shape[1:])))
    engine.allgather(given.array, whole.array, [count * width for count in counts])
    return whole.memory
