"""``DistributedOptimizer``: the user's optimizer, fed with the gradients of all ranks.

optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
loss.backward()             # afterwards every p.grad is the average over the ranks
optimizer.step()
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.identity import Identity, Names
from farandole.gradients.shard_reducer import Shard, require_plain
from farandole.gradients.terms import Terms, checked_passes, gradient_reduction, numbered_groups
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adasum import AdasumOptimizer
from farandole.torch.compression import Compression, CompressorLike
from farandole.torch.reducer import TorchReducer
from farandole.torch.subclass import FrontOptimizer, put_before, refuse_copies
from farandole.torch.virtual_workers import TorchShardReducer, VirtualWorkers

Named: TypeAlias = Iterable[tuple[str, torch.Tensor]]
Groups: TypeAlias = int | list[list[torch.Tensor]]

_PARAMS = itemgetter("params")


class ReducingOptimizer(FrontOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: gradients are reduced before they are used."""

    backward_passes_per_step: int
    gradient_lag: int = 0
    _reducer: TorchReducer | TorchShardReducer
    _parameter_names: Mapping[torch.Tensor, str]
    _handles: dict[torch.Tensor, int]
    _should_synchronize: bool

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """One step of the user's optimizer; reduces first where no backward pass has done so (no loss on this rank)."""
        if closure is not None:
            loss = super().step(self._reducer.wrap(closure), **others)
        else:
            self.prepare()
            self._reducer.vote()
            loss = super().step(**others)
        self._reducer.stepped()
        return loss

    __reduce_ex__ = refuse_copies

    step.hooked = True  # type: ignore[attr-defined] # the user's class runs the step hooks; once is enough

    def _begin(self, names: Names, terms: Terms, passes: int, virtual: VirtualWorkers | None) -> None:
        self.backward_passes_per_step, self._should_synchronize = passes, True
        self._parameter_names, self._handles = {param: name for name, param in names.pairs()}, {}
        reference = weakref.ref(self)  # the optimizer owns its reducer, not the other way round

        def groups() -> list[dict[str, Any]]:
            found = reference()
            return [] if found is None else found.param_groups

        def params() -> list[torch.Tensor]:  # every step asks
            found = reference()
            return [] if found is None else list(chain.from_iterable(map(_PARAMS, found.param_groups)))

        kind = "optimizer" if virtual is None else "virtual workers"
        identity = Identity(params(), names, terms.process_set, kind)
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

        A loss is the mean over its shard's rows. Inside the loop the global random generators are the shard's.
        Gradients are those of the global batch when the loop is over; they may be clipped before ``step()``.
        """
        if not isinstance(self._reducer, TorchShardReducer):
            raise UsageError("shards() needs virtual workers: DistributedOptimizer(..., virtual_workers=8)")
        return self._reducer.shards(rows)

    def synchronize(self) -> None:
        """Reduce now if no backward pass has; afterwards gradients may be looked at and changed."""
        self._reducer.settle()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, ``step`` uses the gradients as they are; for scripts that call ``synchronize`` themselves."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Zero the gradients as the user's class does; allowed at any time."""
        super().zero_grad(*args, **kwargs)
        self._reducer.zeroed()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce after every ``passes`` backward passes from now on."""
        self.backward_passes_per_step = self._reducer.passes_per_step = checked_passes(passes)
        self._reducer.restart()
        self._reducer.watch_again()  # passes that are summed are weighed one by one

    def prepare(self) -> None:
        """Reduce what has not been reduced, as ``step`` does first; nothing inside ``skip_synchronize``."""
        if self._should_synchronize:
            self._reducer.settle()

    def set_gradient_lag(self, lag: int) -> None:
        """Step with the gradients of ``lag`` steps ago from now on; see ``farandole.torch.optim.GradientLag``."""
        if not isinstance(self._reducer, TorchReducer):
            raise UsageError("GradientLag with virtual workers: their gradients belong to one step, use either")
        self._reducer.delay(lag)
        self.gradient_lag = lag

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state as the user's class does; an accumulation that had begun is forgotten."""
        super().load_state_dict(*args, **kwargs)
        self._reducer.restart()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as the user's class does; its parameters are reduced too."""
        super().add_param_group(param_group)
        self._reducer.watch_again()


def DistributedOptimizer(  # noqa: N802 (it stands for a class)
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
) -> ReducingOptimizer | AdasumOptimizer:
    """Make ``optimizer`` step with the gradients of all ranks. Use the returned object from then on.

    >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    It is an instance of the class of ``optimizer`` and shares its state. Gradients are reduced when a backward pass
    ends, so they may be clipped, unscaled or replaced before ``step()``, without ritual. A rank without a backward pass
    since the last step, or without a gradient for some parameter, contributes zeros; where no rank has one, ``grad``
    stays ``None``. Parameters put into ``param_groups`` by hand are watched from the next reduction on; until then,
    they are reduced in ``step()``.

    ``backward_passes_per_step``: sum the gradients of that many passes on each rank before reducing (divide the loss by
    it for a mean). ``op``: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product``, or ``Adasum``, which lets every rank
    step on its own gradients and combines the changes of the parameters. ``gradient_predivide_factor`` *f*: divide by
    *f* before the sum and by *size / f* after it. ``groups``: parameters that travel together, as lists or as a number
    of lists to make (``num_groups`` is its older name). ``sparse_as_dense``: reduce sparse gradients as dense ones;
    they are sparse again afterwards. ``process_set``: the ranks that share gradients. ``virtual_workers``: the same
    bits for any number of workers, see ``VirtualWorkers``. Raises ``ValueError`` for arguments that cannot be.
    """
    if isinstance(optimizer, ReducingOptimizer | AdasumOptimizer):
        raise UsageError("the optimizer is distributed already: wrap the original, once")
    how = gradient_reduction(op, gradient_predivide_factor)
    passes = checked_passes(backward_passes_per_step)
    names = Names.checked((group["params"] for group in optimizer.param_groups), named_parameters)
    if num_groups:
        warnings.warn("num_groups is the older name of groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    numbers = numbered_groups(groups, trained, torch.Tensor)
    travels = None if compression is Compression.none else compression
    terms = Terms(how, travels, *numbers, sparse_as_dense, process_set)
    virtual = VirtualWorkers(virtual_workers) if isinstance(virtual_workers, int) else virtual_workers
    if virtual is not None:
        require_plain(terms, virtual.count, passes)
    front = AdasumOptimizer if how.op is ReduceOp.ADASUM else ReducingOptimizer
    distributed: ReducingOptimizer | AdasumOptimizer = put_before(front, optimizer)
    if isinstance(distributed, AdasumOptimizer):
        distributed._begin(names, terms, passes)
    else:
        distributed._begin(names, terms, passes, virtual)
    return distributed
