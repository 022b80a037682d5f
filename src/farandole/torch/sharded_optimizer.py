"""``DistributedOptimizer(shard_state=True)``: each rank keeps 1/N of the optimizer's state (ZeRO-1).

optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters()), shard_state=True)
loss.backward()
optimizer.step()                    # of this rank's part; then every rank has all parameters
optimizer.consolidate_state_dict()  # on all ranks, before rank 0 saves state_dict()
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, final

import torch
import torch.optim.optimizer as hooks

from farandole.adapters.torch import adapter
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.init import current, takes_part
from farandole.runtime.session.process_sets import ProcessSet
from farandole.torch import optim
from farandole.torch.mpi_ops import ops
from farandole.torch.optim.larc import LARCOptimizer
from farandole.torch.reducer import TorchReducer
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.state_shards import State, StateShards

_leaves = Leaves(adapter)

BY_ELEMENT = {
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
}
"""Optimizers whose step treats each element independently, so that a tensor may be cut."""

BY_TENSOR = {optim.LAMB, optim.LARS, optim.RMSpropWarmupSGD} | {
    getattr(torch.optim, name) for name in ("Adafactor", "Muon", "SparseAdam") if hasattr(torch.optim, name)
}
"""Optimizers whose step treats each tensor independently."""

DIVISION = "_division"
"""Attribute of the user's optimizer and of its front object, which share their state: the assignment of its parts."""


@final
class StateDivision:
    """Parts of an optimizer's state: ``shards`` if this rank has only its part, ``consolidated`` if gathered here."""

    def __init__(self) -> None:
        self.shards: StateShards | None = None
        self.consolidated: dict[Any, State] | None = None
        self.is_everywhere = False

    def take_back(self, state: dict[Any, State]) -> None:
        """Make ``state`` the gathered whole again. Raises ``UsageError`` if it was not gathered here."""
        if self.shards is None:
            return
        if self.consolidated is None:
            raise UsageError(
                f"this rank has part {self.shards.rank} of {self.shards.size} of the optimizer's state, and the ranks, "
                "or the optimizer before it, are others now: call optimizer.consolidate_state_dict(to=None) before "
                "shutdown(), or before you wrap the same optimizer again"
            )
        rest = _of_no_tensor(state)
        state.clear()
        state.update({**self.consolidated, **rest})
        self.let_go(state)

    def let_go(self, state: dict[Any, State]) -> None:
        """Forget the parts, because ``state`` is whole again."""
        self.shards, self.consolidated, self.is_everywhere = None, None, False
        _answer(state, dict)


class ShardedOptimizer(ReducingOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: the ranks shard its state.

    Every rank reduces all gradients, so clipping or unscaling before ``step()`` works as usual. Each rank then steps
    its part of the parameters, and the ranks exchange the parameters.
    """

    _division: StateDivision
    _cuts: bool

    def step(self, closure: Callable[[], Any] | None = None, **others: Any) -> Any:
        """Run the user's step on this rank's part of the parameters, then exchange the parameters.

        Raises ``UsageError`` for a closure: an optimizer that evaluates losses needs its whole state.
        """
        if not self._is_shared():
            self._division.take_back(self.state)
            return super().step(closure, **others)
        if closure is not None:
            raise UsageError("step(closure) with shard_state=True: call backward(), then step() without a closure")
        self.prepare()
        self._reducer.vote()
        shards, reducer = self._divided(), self._gradient_reducer
        # Before the step: an optimizer may drop the gradients that it has used, which are only those of its part.
        stepped = [param for _, param in reducer.named() if param.requires_grad or param.grad is not None]
        shards.require_steady(stepped)
        self._division.consolidated, self._division.is_everywhere = None, False
        with _alone(self, others), shards.in_place_of(self.param_groups):
            result = super(ReducingOptimizer, self).step(**others)
        shards.exchange(reducer.lane(current("step()"), ".parameters"), stepped)
        for hook in chain(self._optimizer_step_post_hooks.values(), hooks._global_optimizer_post_hooks.values()):
            hook(self, (self,), others)
        self._reducer.stepped()
        return result

    step.hooked = True  # type: ignore[attr-defined] # ``_alone`` runs the pre-hooks, ``step`` the post-hooks

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Gather the whole state on the rank ``to``, for its ``state_dict()``; ``None``: on every rank.

        >>> optimizer.consolidate_state_dict()
        >>> if hvd.rank() == 0:
        ...     torch.save(optimizer.state_dict(), "optimizer.pt")

        Collective. The rank ``to`` needs memory for the whole state until the next step. The result is the same state
        as without ``shard_state``: it can be loaded with or without it, on any number of ranks.
        """
        division = self._division
        if not self._is_shared() or division.shards is None or division.is_everywhere:
            return
        shards, process_set = self._divided(), self._process_set
        if to is not None and to not in process_set.ranks:
            raise UsageError(f"consolidate_state_dict(to={to}): the ranks of this optimizer are {process_set.ranks}")
        named = dict(self._gradient_reducer.named())
        mine = {
            name: {piece.begin: self.state[view] for piece, view in shards.own(param) if view in self.state}
            for name, param in named.items()
        }
        mine = copy.deepcopy(mine)  # later steps must not change the gathered state
        wanted = to is None or process_set.rank() == process_set.ranks.index(to)
        parts: dict[str, dict[int, State]] = defaultdict(dict)
        label = f"{self._gradient_reducer.label}.state"
        for owner in process_set.ranks:
            found = broadcast_tree(ops, _leaves, lambda: mine, owner, label, process_set)
            for name, states in found.items() if wanted else ():
                parts[name].update(states)
        whole = {named[name]: shards.joined(named[name], states) for name, states in parts.items() if states}
        division.consolidated, division.is_everywhere = whole if wanted else None, to is None

    def state_dict(self) -> dict[str, Any]:
        """Whole state in the format of the user's class, on ranks where ``consolidate_state_dict`` has gathered it.

        Raises ``UsageError`` on other ranks, and after a step: there the rank has only its part.
        """
        if self._division.shards is None:
            return super().state_dict()
        if self._division.consolidated is None:
            raise UsageError(
                "state_dict() with shard_state=True: this rank has a part of the state. Call optimizer."
                "consolidate_state_dict(to=0) on every rank, and then state_dict() on rank 0 (to=None: on any)"
            )
        own, self.state = self.state, defaultdict(dict, self._division.consolidated)
        self.state.update(_of_no_tensor(own))
        try:
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a whole state; from the next step on this rank keeps only its part. An error changes nothing."""
        super().load_state_dict(*args, **kwargs)
        self._division.let_go(self.state)

    def _begin_sharing(self, optimizer: torch.optim.Optimizer) -> None:
        self._cuts, self._division = type(optimizer) in BY_ELEMENT, StateDivision()
        optimizer.__dict__[DIVISION] = self._division  # for ``require_undivided``, if the optimizer is wrapped again
        self._gradient_reducer.steps_together = True

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
        """Return the assignment of elements; the first call drops the state of other ranks' elements."""
        reducer, division = self._gradient_reducer, self._division
        lane = reducer.lane(current("step()"), ".parameters")
        if division.shards is not None and (division.shards.rank, division.shards.size) != (lane.rank, lane.size):
            division.take_back(self.state)
        shards = division.shards or StateShards(lane.rank, lane.size, self._cuts)
        shards.cover(param for _, param in reducer.named())
        if division.shards is None:
            shards.keep_own(self.state)
            division.shards = shards
            _answer(self.state, _refuse_lookup)
        return shards


def require_shareable(
    optimizer: torch.optim.Optimizer, op: ReduceOp, has_virtual_workers: bool, shard_state: bool | str
) -> None:
    """Raise ``UsageError`` for an optimizer that cannot, or may not be able to, step a part of the parameters."""
    if shard_state is False:
        return
    if shard_state not in (True, "by tensor"):
        raise UsageError(f"shard_state={shard_state!r}: use True, or 'by tensor' for an optimizer of your own")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("shard_state=True with LBFGS, which adds over all parameters: leave it out")
    if op is ReduceOp.ADASUM:
        raise UsageError("shard_state=True with op=Adasum, where every rank steps on its own gradients: use either")
    if has_virtual_workers:
        raise UsageError("shard_state=True with virtual_workers: use either")
    kind = type(optimizer).__bases__[1] if isinstance(optimizer, LARCOptimizer) else type(optimizer)
    if kind not in BY_ELEMENT | BY_TENSOR and shard_state != "by tensor":
        raise UsageError(
            f"shard_state=True with {type(optimizer).__qualname__}, which is not known here: if its step treats each "
            "tensor by itself (no norm or sum over all of them, no random numbers), pass shard_state='by tensor'"
        )


def require_undivided(optimizer: torch.optim.Optimizer) -> None:
    """Restore the whole state of an optimizer that was wrapped before; raises ``UsageError`` if it is in parts."""
    division: StateDivision | None = optimizer.__dict__.pop(DIVISION, None)
    if division is not None:
        division.take_back(optimizer.state)


@contextmanager
def _alone(optimizer: torch.optim.Optimizer, others: dict[str, Any]) -> Iterator[None]:
    """Context for the step of a part: runs the pre-hooks on all parameters first, and no hook inside.

    A fused optimizer with scaled gradients would unscale only its part, so all gradients are unscaled first.
    """
    before = chain(optimizer._optimizer_step_pre_hooks.values(), hooks._global_optimizer_pre_hooks.values())
    for hook in before:
        if (found := hook(optimizer, (optimizer,), others)) is not None:
            others.update(found[1])
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for param in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if param.grad is not None:
                param.grad.div_(scale)
        optimizer.grad_scale = None  # type: ignore[attr-defined]
    kept = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    of_all = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks
    optimizer._optimizer_step_pre_hooks = OrderedDict()
    optimizer._optimizer_step_post_hooks = OrderedDict()
    hooks._global_optimizer_pre_hooks = OrderedDict()
    hooks._global_optimizer_post_hooks = OrderedDict()
    _answer(optimizer.state, dict)
    try:
        yield
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = kept
        hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks = of_all
        _answer(optimizer.state, _refuse_lookup)
        if scale is not None:
            optimizer.grad_scale = scale  # type: ignore[attr-defined]


def _answer(state: dict[Any, State], missing: Callable[[], Any]) -> None:
    """Set ``missing`` as the default factory of ``state``."""
    if isinstance(state, defaultdict):
        state.default_factory = missing


def _refuse_lookup() -> State:
    raise UsageError(
        "optimizer.state of a parameter with shard_state=True: other ranks have it, or parts of it. Call "
        "optimizer.consolidate_state_dict(to=None) on every rank, and change what state_dict() gives; load it again"
    )


def _of_no_tensor(state: dict[Any, State]) -> dict[Any, State]:
    """Entries of an optimizer's state whose key is not a parameter."""
    return {key: value for key, value in state.items() if not isinstance(key, torch.Tensor)}
