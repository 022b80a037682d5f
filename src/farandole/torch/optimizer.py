"""``DistributedOptimizer``: the user's optimizer, stepping with the gradients of all ranks.

optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
loss.backward()             # afterwards every p.grad is the average over the ranks
optimizer.step()
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TypeAlias

import torch

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.optimizer_key import Names
from farandole.gradients.reduction_options import ReductionOptions, checked_passes, gradient_reduction, numbered_groups
from farandole.gradients.shard_reducer import require_plain
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adasum import AdasumOptimizer
from farandole.torch.compression import Compression, CompressorLike
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.sharded_optimizer import ShardedOptimizer, require_shareable
from farandole.torch.state_division import require_undivided
from farandole.torch.subclass import put_before
from farandole.torch.virtual_workers import VirtualWorkers

Named: TypeAlias = Iterable[tuple[str, torch.Tensor]]
Groups: TypeAlias = int | list[list[torch.Tensor]]


def DistributedOptimizer(  # noqa: N802 (used like a class)
    optimizer: torch.optim.Optimizer,
    named_parameters: Named | None = None,
    compression: CompressorLike = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    virtual_workers: VirtualWorkers | int | None = None,
    shard_state: bool | str = False,
    replicas: int = 1,
) -> ReducingOptimizer | AdasumOptimizer:
    """Make ``optimizer`` step with the gradients of all ranks. Use the returned object from then on.

    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    The result is an instance of the class of ``optimizer`` and shares its state. Gradients are reduced at the end of a
    backward pass, so they may be clipped, unscaled or replaced before ``step()`` without further calls. A rank without
    a backward pass since the last step, or without a gradient for some parameter, contributes zeros; if no rank has a
    gradient, ``grad`` stays ``None``. Parameters added to ``param_groups`` by hand get hooks at the next reduction;
    until then, they are reduced in ``step()``.

    ``backward_passes_per_step``: sum the gradients of that many passes on each rank before reducing (divide the loss by
    it for a mean). ``op``: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum``: every rank steps with
    its own gradients, and the parameter changes are combined. ``gradient_predivide_factor`` *f*: divide by *f*
    before the sum and by *size / f* after it. ``groups``: parameters that are reduced together, as lists or as a number
    of lists to make (``num_groups`` is its older name). ``sparse_as_dense``: reduce sparse gradients as dense ones;
    they are sparse again afterwards. ``process_set``: the ranks that share gradients. ``virtual_workers``: the same
    bits for any number of workers, see ``VirtualWorkers``. ``shard_state``: each rank keeps 1/N of the optimizer's
    state, see ``ShardedOptimizer``. ``replicas=2``: 2/N of it, in an elastic job with this optimizer in a
    ``TorchState``: its own part, and a copy of another rank's, on another host if possible. A killed rank then costs
    the interrupted step, and not all steps since the last commit. In other jobs ``replicas`` is without effect, and
    two ranks keep the whole. Raises ``ValueError`` for invalid arguments.
    """
    if isinstance(optimizer, ReducingOptimizer | AdasumOptimizer):
        raise UsageError("the optimizer is distributed already: wrap the original, once")
    how = gradient_reduction(op, gradient_predivide_factor)
    passes = checked_passes(backward_passes_per_step)
    names = Names.checked((group["params"] for group in optimizer.param_groups), named_parameters)
    groups = _groups(num_groups, groups)
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    numbers = numbered_groups(groups, trained, torch.Tensor)
    travels = None if compression is Compression.none else compression
    terms = ReductionOptions(how, travels, *numbers, sparse_as_dense, process_set)
    virtual = VirtualWorkers(virtual_workers) if isinstance(virtual_workers, int) else virtual_workers
    if virtual is not None:
        require_plain(terms, virtual.count, passes)
    require_shareable(optimizer, how.op, virtual is not None, shard_state, replicas)
    require_undivided(optimizer)
    front = ShardedOptimizer if shard_state else AdasumOptimizer if how.op is ReduceOp.ADASUM else ReducingOptimizer
    distributed: ReducingOptimizer | AdasumOptimizer = put_before(front, optimizer)
    if isinstance(distributed, AdasumOptimizer):
        distributed._begin(names, terms, passes)
    else:
        distributed._begin(names, terms, passes, virtual)
    if isinstance(distributed, ShardedOptimizer):
        distributed._begin_sharing(optimizer, replicas)
    return distributed


def _groups(num_groups: int, groups: Groups | None) -> Groups | None:
    if not num_groups:
        return groups
    warnings.warn("num_groups is the older name of groups", DeprecationWarning, stacklevel=3)
    return num_groups if groups is None else groups
