"""``mx.optimizer`` with the gradients of all ranks: for ``mx.mod.Module`` and the user's own training loops."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from farandole.adapters.mxnet import NDArray, verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UsageError
from farandole.runtime.session.init import takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

_OWN = ("_optimizer", "_how", "_process_set")


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc] # MXNet has no types
    """Optimizer that averages each gradient over all ranks before its use.

    >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=1 / batch_size))
    >>> module.init_optimizer(kvstore=None, optimizer=optimizer)

    States, counters and attributes are those of ``optimizer``. For Gluon use ``DistributedTrainer``, which reduces all
    gradients of a step at once and is faster. Gradients are matched by the index of their weight, so only one optimizer
    per process set can be in use. ``gradient_predivide_factor``: divide by it before the sum, and by *size* / factor
    after it. ``num_groups`` has no effect, because an optimizer gets one gradient at a time.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer) or isinstance(optimizer, DistributedOptimizer):
            raise UsageError(
                f"DistributedOptimizer of a {type(optimizer).__name__}: give it an optimizer of MXNet that is not "
                "distributed yet, such as mx.optimizer.create('sgd')"
            )
        if gradient_predivide_factor <= 0:
            raise UsageError(f"gradient_predivide_factor={gradient_predivide_factor}: it is above 0")
        self._optimizer, self._process_set = optimizer, process_set
        self._how = Reduction(ReduceOp.AVERAGE, 1 / gradient_predivide_factor, gradient_predivide_factor)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes on the inner optimizer: Gluon and Module set ``rescale_grad``, for example, in each step."""
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """See ``mx.optimizer.Optimizer``."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        """See ``mx.optimizer.Optimizer``."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average ``grad`` in place, and update ``weight``. Collective."""
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average ``grad`` in place, and update ``weight``. Collective."""
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """See ``mx.optimizer.Optimizer``."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """See ``mx.optimizer.Optimizer``."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """See ``mx.optimizer.Optimizer``."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _average(self, index: Any, grad: Any) -> None:
        """Reduce one gradient, or several at once if MXNet aggregates updates."""
        if not takes_part(self._process_set, "a reduction of gradients"):
            return
        named = zip(index, grad, strict=True) if isinstance(index, list | tuple) else [(index, grad)]
        pending = [
            verbs.allreduce([each], f"gradient.{i}", self._how, self._process_set, in_place=True).begin()
            for i, each in named
        ]
        for each in pending:
            each.wait()
