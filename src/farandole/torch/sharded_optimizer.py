"""``DistributedOptimizer(shard_state=True)``: each rank keeps 1/N of the optimizer's state (ZeRO-1).

optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters()), shard_state=True)
loss.backward()
optimizer.step()                    # of this rank's part; then everybody has the parameters of all
optimizer.consolidate_state_dict()  # on all ranks, before rank 0 saves state_dict()
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from farandole.adapters.torch import adapter
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.init import current, takes_part
from farandole.runtime.session.process_sets import ProcessSet
from farandole.torch.mpi_ops import ops
from farandole.torch.reducer import TorchReducer
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.state_shards import State, StateShards

_leaves = Leaves(adapter)

BY_ELEMENT = {
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
}
"""Optimizers that treat each element by itself, so that a tensor may be cut. Of all others whole tensors are kept."""


class ShardedOptimizer(ReducingOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: ranks share out its state.

    Gradients are reduced whole on every rank, so what is done with them before ``step()`` (clipping, unscaling) is done
    as ever; each rank then steps with its part, and all exchange the parameters.
    """

    _shards: StateShards | None
    _is_whole: bool
    _consolidated: dict[torch.Tensor, State] | None
    _is_everywhere: bool
    _cuts: bool

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """One step of the user's optimizer on this rank's part of the parameters, which all then exchange.

        Raises ``UsageError`` for a closure: an optimizer that evaluates losses needs all of its state.
        """
        if not self._is_shared():
            return super().step(closure, **others)
        if closure is not None:
            raise UsageError("step(closure) with shard_state=True: call backward(), then step() without a closure")
        self.prepare()
        self._reducer.vote()
        shards, reducer = self._divided(), self._gradient_reducer
        # Before the step: an optimizer may drop the gradients that it has used, and those are of its own part alone.
        stepped = [param for _, param in reducer.named() if param.requires_grad or param.grad is not None]
        self._consolidated, self._is_everywhere = None, False
        with _hooked(self, others), shards.in_place_of(self.param_groups):
            result = super(ReducingOptimizer, self).step(**others)
        shards.exchange(reducer.lane(current("step()"), ".parameters"), stepped)
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (self,), others)
        self._reducer.stepped()
        return result

    step.hooked = True  # type: ignore[attr-defined] # ``_hooked`` runs the hooks, when all parameters are there

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Gather the whole state on the rank ``to``, whose ``state_dict()`` then has it; ``None``: on every rank.

        >>> optimizer.consolidate_state_dict()
        >>> if hvd.rank() == 0:
        ...     torch.save(optimizer.state_dict(), "optimizer.pt")

        Collective. The rank ``to`` needs memory for all of it, until the next step. What it has then is the state of
        the optimizer as it is without ``shard_state``, to be loaded by either, on any number of ranks.
        """
        if not self._is_shared() or self._is_whole or self._is_everywhere:
            return
        shards, process_set = self._divided(), self._process_set
        if to is not None and to not in process_set.ranks:
            raise UsageError(f"consolidate_state_dict(to={to}): the ranks of this optimizer are {process_set.ranks}")
        named = dict(self._gradient_reducer.named())
        mine = {
            name: {piece.begin: self.state[view] for piece, view in shards.own(param) if view in self.state}
            for name, param in named.items()
        }
        wanted = to is None or process_set.rank() == process_set.ranks.index(to)
        parts: dict[str, dict[int, State]] = defaultdict(dict)
        label = f"{self._gradient_reducer.label}.state"
        for owner in process_set.ranks:
            found = broadcast_tree(ops, _leaves, lambda: mine, owner, label, process_set)
            for name, states in found.items() if wanted else ():
                parts[name].update(states)
        whole = {named[name]: shards.joined(named[name], states) for name, states in parts.items() if states}
        self._consolidated, self._is_everywhere = whole if wanted else None, to is None

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as the user's class gives it, where ``consolidate_state_dict`` has gathered it.

        Raises ``UsageError`` elsewhere, and after a step: this rank has a part alone.
        """
        if self._is_whole:
            return super().state_dict()
        if self._consolidated is None:
            raise UsageError(
                "state_dict() with shard_state=True: this rank has a part of the state. Call optimizer."
                "consolidate_state_dict(to=0) on every rank, and then state_dict() on rank 0 (to=None: on any)"
            )
        own, self.state = self.state, defaultdict(dict, self._consolidated)
        try:
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a whole state, of which this rank keeps its part from the next step on."""
        self.state.clear()
        super().load_state_dict(*args, **kwargs)
        self._begin_sharing(self._cuts)

    def _begin_sharing(self, cuts: bool) -> None:
        self._shards, self._is_whole, self._cuts = None, True, cuts
        self._gradient_reducer.steps_together = True
        self._consolidated, self._is_everywhere = None, False

    @property
    def _gradient_reducer(self) -> TorchReducer:
        assert isinstance(self._reducer, TorchReducer)
        return self._reducer

    @property
    def _process_set(self) -> ProcessSet:
        return self._reducer.process_set

    def _is_shared(self) -> bool:
        return takes_part(self._process_set, "an optimizer's step") and len(self._process_set.ranks) > 1

    def _divided(self) -> StateShards:
        """Return the assignment of elements; the first time, drop the state of those that others keep."""
        reducer, session = self._gradient_reducer, current("step()")
        lane, shards = reducer.lane(session, ".parameters"), self._shards
        if shards is not None and (shards.rank, shards.size) != (lane.rank, lane.size):
            if self._consolidated is None:
                raise UsageError(
                    f"this rank keeps part {shards.rank} of {shards.size} of the optimizer's state, and is now number "
                    f"{lane.rank} of {lane.size}: call optimizer.consolidate_state_dict(to=None) before shutdown()"
                )
            self.state.clear()
            self.state.update(self._consolidated)
            self._begin_sharing(self._cuts)
            shards = None
        if shards is None:
            shards = self._shards = StateShards(lane.rank, lane.size, self._cuts)
        shards.cover(param for _, param in reducer.named())
        if self._is_whole:
            shards.keep_own(self.state)
            self._is_whole = False
        return shards


def require_shareable(optimizer: torch.optim.Optimizer, op: ReduceOp, has_virtual_workers: bool) -> None:
    """Raise ``UsageError`` for what cannot step with parts of the parameters."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("shard_state=True with LBFGS, which adds over all parameters: leave it out")
    if op is ReduceOp.ADASUM:
        raise UsageError("shard_state=True with op=Adasum, where every rank steps on its own gradients: use either")
    if has_virtual_workers:
        raise UsageError("shard_state=True with virtual_workers: use either")


@contextmanager
def _hooked(optimizer: torch.optim.Optimizer, others: dict[str, Any]) -> Iterator[None]:
    """Run the hooks before a step, and keep the step itself from running any: it has a part of the parameters."""
    for hook in optimizer._optimizer_step_pre_hooks.values():
        if (found := hook(optimizer, (optimizer,), others)) is not None:
            others.update(found[1])
    kept = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    optimizer._optimizer_step_pre_hooks = OrderedDict()
    optimizer._optimizer_step_post_hooks = OrderedDict()
    try:
        yield
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = kept
