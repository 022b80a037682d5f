"""Mixin of optimizers that step with the gradients of all ranks; see ``farandole.torch.optimizer``.

optimizer._begin(names, terms, passes, virtual)     # after ``put_before``
loss.backward()             # afterwards every p.grad is the average over the ranks
optimizer.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any

import torch

from farandole.errors import UsageError
from farandole.gradients.optimizer_key import Names, OptimizerKey
from farandole.gradients.reduction_options import ReductionOptions, checked_passes
from farandole.gradients.shard_reducer import Shard
from farandole.torch.reducer import TorchReducer
from farandole.torch.subclass import FrontOptimizer, refuse_copies
from farandole.torch.virtual_workers import TorchShardReducer, VirtualWorkers

_PARAMS = itemgetter("params")


class ReducingOptimizer(FrontOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: reduces gradients before the step."""

    backward_passes_per_step: int
    gradient_lag: int = 0
    _reducer: TorchReducer | TorchShardReducer
    _parameter_names: Mapping[torch.Tensor, str]
    _handles: dict[torch.Tensor, int]
    _should_synchronize: bool

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Run the user's step; reduce first if no backward pass has done so (no loss on this rank)."""
        if closure is not None:
            loss = super().step(self._reducer.wrap(closure), **others)
        else:
            self.prepare()
            self._reducer.vote()
            loss = super().step(**others)
        self._reducer.stepped()
        return loss

    __reduce_ex__ = refuse_copies

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; not twice

    def _begin(self, names: Names, terms: ReductionOptions, passes: int, virtual: VirtualWorkers | None) -> None:
        self.backward_passes_per_step, self._should_synchronize = passes, True
        self._parameter_names, self._handles = {param: name for name, param in names.pairs()}, {}
        reference = weakref.ref(self)  # weak: the optimizer owns its reducer, not vice versa

        def groups() -> list[dict[str, Any]]:
            found = reference()
            return [] if found is None else found.param_groups

        def params() -> list[torch.Tensor]:  # called in every step
            found = reference()
            return [] if found is None else list(chain.from_iterable(map(_PARAMS, found.param_groups)))

        kind = "optimizer" if virtual is None else "virtual workers"
        identity = OptimizerKey(params(), names, terms.process_set, kind)
        if virtual is None:
            self._reducer = TorchReducer(params, identity, terms, passes)
            self._reducer.belongs_to(self)
            self._reducer.adds_in_order = isinstance(self, torch.optim.LBFGS)
        else:
            self._reducer = TorchShardReducer(groups, identity, terms, virtual)

    def shards(self, rows: int) -> Iterator[Shard]:
        """Iterate over this worker's shards of a global batch of ``rows`` rows; needs ``virtual_workers``.

        >>> for shard in optimizer.shards(len(x)):
        ...     loss_of(model(x[shard.rows]), y[shard.rows]).backward()
        >>> optimizer.step()

        Each loss is the mean over its shard's rows. Inside the loop the global random generators are the shard's. After
        the loop, the gradients are those of the global batch; they may be clipped before ``step()``.
        """
        if not isinstance(self._reducer, TorchShardReducer):
            raise UsageError("shards() needs virtual workers: DistributedOptimizer(..., virtual_workers=8)")
        return self._reducer.shards(rows)

    def synchronize(self) -> None:
        """Reduce now if no backward pass has done so; then the script may read and change gradients."""
        self._reducer.settle()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Context in which ``step`` does not reduce; for scripts that call ``synchronize`` themselves."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Zero the gradients like the user's class; allowed at any time."""
        super().zero_grad(*args, **kwargs)
        self._reducer.zeroed()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce after every ``passes`` backward passes from now on."""
        self.backward_passes_per_step = self._reducer.passes_per_step = checked_passes(passes)
        self._reducer.restart()
        self._reducer.watch_again()  # with several passes, each pass needs its weight

    def prepare(self) -> None:
        """Reduce gradients not yet reduced, like the begin of ``step``; nothing inside ``skip_synchronize``."""
        if self._should_synchronize:
            self._reducer.settle()

    def set_gradient_lag(self, lag: int) -> None:
        """Step with the gradients of ``lag`` steps ago from now on; see ``farandole.torch.optim.GradientLag``."""
        if not isinstance(self._reducer, TorchReducer):
            raise UsageError("GradientLag with virtual workers: their gradients belong to one step, use either")
        self._reducer.delay(lag)
        self.gradient_lag = lag

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state like the user's class, and drop an unfinished accumulation."""
        super().load_state_dict(*args, **kwargs)
        self._reducer.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group like the user's class; its parameters are reduced, too."""
        super().add_param_group(param_group)
        self._reducer.watch_again()
