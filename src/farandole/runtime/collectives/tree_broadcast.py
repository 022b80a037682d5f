"""Broadcast of a tree: nested containers with tensors of a framework and other objects that can be pickled.

state = broadcast_tree(ops, Leaves(adapter), optimizer.state_dict, root_rank=0, name="optimizer_state")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import broadcast_object
from farandole.runtime.collectives.ops import Ops
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

T = TypeVar("T")


def broadcast_tree(
    ops: Ops[T],
    leaves: Leaves[T],
    tree: Callable[[], Any],
    root_rank: int,
    name: str,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the result of ``tree`` on the rank ``root_rank``; on other ranks with new tensors. Collective."""
    is_root = process_set.included() and process_set.ranks[process_set.rank() or 0] == root_rank
    mine = tree() if is_root else None
    skeleton, tensors = leaves.flatten(mine)
    skeleton = broadcast_object(skeleton, root_rank, name, process_set)
    if not is_root:
        mine, tensors = leaves.put(skeleton, ())
    ops.broadcast_parameters([(f"{name}.{i}", tensor) for i, tensor in enumerate(tensors)], root_rank, process_set)
    return mine
