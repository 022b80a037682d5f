"""``DistributedOptimizer`` of ``farandole.torch``, with the private attributes of Horovod's that scripts use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

import farandole.torch
from farandole.collective import ReduceOp
from farandole.errors import UnsupportedError
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adasum import AdasumOptimizer
from farandole.torch.compression import Compression, CompressorLike
from farandole.torch.optimizer import Groups, Named
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.sharded_optimizer import ShardedOptimizer
from farandole.torch.virtual_workers import VirtualWorkers

__all__ = ["DistributedOptimizer"]

_WARNING = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(): gradients are "
    "reduced in both. Say: with optimizer.skip_synchronize(): optimizer.step()"
)
_HOOKS = (
    "_register_hooks",
    "_make_hook",
    "_allreduce_grad_async",
    "_grouped_allreduce_grad_async",
    "_sparse_allreduce_grad_async",
)
"""Methods of Horovod's class that reduce a gradient; Farandole reduces gradients elsewhere, and never calls them."""


@final
@dataclass(frozen=True)
class _Asked:
    """Arguments of ``DistributedOptimizer`` that scripts may read afterwards."""

    compression: CompressorLike
    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet


class _Private:
    """Attributes of Horovod's wrapped optimizers that scripts read; read-only if setting them has no effect."""

    _parameter_names: Mapping[torch.Tensor, str]
    _asked: _Asked
    _requires_update: set[torch.Tensor]

    op = property(lambda self: self._asked.op)
    process_set = property(lambda self: self._asked.process_set)
    sparse_as_dense = property(lambda self: self._asked.sparse_as_dense)
    gradient_predivide_factor = property(lambda self: self._asked.gradient_predivide_factor)
    _compression = property(lambda self: self._asked.compression)

    def __init__(self, *_: object, **__: object) -> None:
        raise UnsupportedError(
            f"{type(self).__name__} cannot be made from a class of horovod.torch.optimizer, which reduces nothing by "
            "itself here: call hvd.DistributedOptimizer(optimizer), and register what is to happen around it as a hook "
            "of its step or of a parameter"
        )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        overridden = [name for name in _HOOKS if name in cls.__dict__]
        if overridden and cls.__module__ != __name__:
            warnings.warn(
                f"{cls.__name__} overrides {', '.join(overridden)} of a class of horovod.torch.optimizer, and cannot "
                "work: Farandole reduces gradients elsewhere and never calls them",
                RuntimeWarning,
                stacklevel=2,
            )

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Begin to reduce the gradient of ``p`` alone, in place; returns a handle and the compressor's context."""
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        asked, name = self._asked, self._parameter_names.get(p)
        if p.grad.is_sparse and not asked.sparse_as_dense:
            return farandole.torch.sparse_allreduce_async(p.grad, str(name), asked.op, asked.process_set), None
        factor = asked.gradient_predivide_factor if asked.op == ReduceOp.AVERAGE else 1.0
        travelling, context = asked.compression.compress(p.grad.to_dense() if p.grad.is_sparse else p.grad)
        handle = farandole.torch.allreduce_async_(
            travelling, None, name, asked.op, 1.0 / factor, factor, asked.process_set
        )
        return handle, context


class _DistributedOptimizer(_Private, ReducingOptimizer):
    """Class of distributed optimizers under Horovod's name, for ``isinstance`` and type hints, not to derive from."""

    _synchronized: bool
    __init__ = _Private.__init__  # for code that makes a class from a copy of these attributes, as Horovod did

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Step like ``farandole.torch``; warns after ``synchronize``, except inside ``skip_synchronize``."""
        if self._should_synchronize and self._synchronized:
            warnings.warn(_WARNING, stacklevel=2)
        self._synchronized = False
        return super().step(closure, **others)

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; not twice

    def synchronize(self) -> None:
        """Reduce the gradients like ``farandole.torch``, and remember it for ``step``."""
        super().synchronize()
        self._synchronized = True


class _DistributedShardedOptimizer(_DistributedOptimizer, ShardedOptimizer):
    """Distributed optimizer with sharded state, which Horovod lacks."""


class _DistributedAdasumOptimizer(_Private, AdasumOptimizer):
    """Class of distributed optimizers with ``op=Adasum``, under Horovod's name."""


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
) -> _DistributedOptimizer | _DistributedAdasumOptimizer:
    """``farandole.torch.DistributedOptimizer``; the class of the result is in this module."""
    made: Any = farandole.torch.DistributedOptimizer(
        optimizer, named_parameters, compression, backward_passes_per_step, op, gradient_predivide_factor,
        num_groups, groups, sparse_as_dense, process_set, virtual_workers, shard_state, replicas,
    )  # fmt: skip
    front: type = _DistributedAdasumOptimizer if isinstance(made, AdasumOptimizer) else _DistributedOptimizer
    front = _DistributedShardedOptimizer if isinstance(made, ShardedOptimizer) else front
    kind = type(optimizer)
    made.__class__ = type(kind.__name__, (front, kind), {"__module__": __name__})
    made._asked = _Asked(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    made._requires_update = {p for group in made.param_groups for p in group["params"] if p.requires_grad}
    made._synchronized = False
    distributed: _DistributedOptimizer | _DistributedAdasumOptimizer = made
    return distributed
