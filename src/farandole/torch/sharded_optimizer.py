"""``DistributedOptimizer(shard_state=True)``: each rank keeps 1/N of the optimizer's state (ZeRO-1).

optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(model.parameters()), shard_state=True)
loss.backward()
optimizer.step()                    # of this rank's part; then every rank has all parameters
optimizer.consolidate_state_dict()  # on all ranks, before rank 0 saves state_dict()
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.optim.optimizer as hooks

from farandole.adapters.torch import adapter
from farandole.collective import ReduceOp
from farandole.errors import CollectiveError, UsageError
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.init import current, takes_part
from farandole.runtime.session.process_sets import ProcessSet
from farandole.torch import optim
from farandole.torch.mpi_ops import ops
from farandole.torch.optim.larc import LARCOptimizer
from farandole.torch.reducer import TorchReducer
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.state_division import (
    DIVISION,
    DividedState,
    Part,
    StateDivision,
    answer,
    of_no_tensor,
    refuse_lookup,
)
from farandole.torch.state_shards import Kept, State, StateShards, copy_holders, flat, gradient, listed

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


class ShardedOptimizer(ReducingOptimizer):
    """Mixin that ``DistributedOptimizer`` puts before the user's class: the ranks shard its state.

    Every rank reduces all gradients, so clipping or unscaling before ``step()`` works as usual. Each rank then steps
    its part of the parameters, and the ranks exchange the parameters.
    """

    _division: StateDivision
    _cuts: bool
    _replicas: int

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
        # All that needs other ranks, and all that may raise, is done before the vote: from there on the step counts.
        shards, reducer, division = self._divided(), self._gradient_reducer, self._division
        lane = reducer.lane(current("step()"), ".parameters")
        # Before the step: an optimizer may drop the gradients that it has used, which are only those of its part.
        stepped = [param for _, param in reducer.named() if param.requires_grad or param.grad is not None]
        shards.require_steady(stepped)
        division.consolidated, division.is_everywhere, division.ahead = None, False, None
        keeps_copies, snapshot = len(shards.parts) > 1, reducer.snapshot()
        with _alone(self, others):
            if keeps_copies:
                shards.exchange(lane, stepped, lambda few: [flat(v) for v, _ in self._stepped_aside(few, others)])
            self._vote(snapshot, others)
            with shards.in_place_of(self.param_groups):
                result = super(ReducingOptimizer, self).step(**others)
        if not keeps_copies:
            shards.exchange(lane, stepped, _values)
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
        own = [shards.rank]
        mine = {
            name: {piece.begin: self.state[view] for _, piece, view in shards.kept(param, own) if view in self.state}
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
        self.state.update(of_no_tensor(own))
        try:
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a whole state; from the next step on this rank keeps only its part. An error changes nothing."""
        super().load_state_dict(*args, **kwargs)
        self._division.let_go(self.state)

    def _begin_sharing(self, optimizer: torch.optim.Optimizer, replicas: int) -> None:
        self._cuts, self._replicas, self._division = type(optimizer) in BY_ELEMENT, replicas, StateDivision()
        optimizer.__dict__[DIVISION] = self._division  # for ``require_undivided``, if the optimizer is wrapped again
        optimizer.state = self.state = DividedState(dict, self.state)
        self._gradient_reducer.steps_together = True

    # -- copies -------------------------------------------------------------------------------------------------------
    #
    # With copies a step is voted, and nothing after the vote needs another rank. The parameters are exchanged before
    # the vote: each rank steps clones of its own pieces, a few at a time, and the ranks that keep no state of a piece
    # receive its new values. After the vote each rank steps its own part and its copy of another part; the gradients
    # of all parts are on every rank. A rank that did not see whether the vote passed keeps both outcomes.

    @property
    def can_vote(self) -> bool:
        """True if a lost rank's part can be had from another rank, so that steps may be voted."""
        return self._replicas > 1

    @property
    def parts_here(self) -> tuple[int, tuple[int, ...]] | None:
        """Number of parts, and those that this rank keeps; ``None`` if it has the whole state."""
        shards = self._division.shards
        return None if shards is None or self._division.is_whole else (shards.size, tuple(shards.parts))

    @property
    def is_ahead(self) -> bool:
        """True if this rank keeps its parts as of the next step, too, whose vote has failed here."""
        return self._division.ahead is not None

    def part(self, number: int, *, ahead: bool) -> Part:
        """Part ``number``, which this rank keeps; ``ahead``: after the step whose vote has failed here."""
        if ahead and self._division.ahead is not None:
            return self._division.ahead[number]
        assert self._division.shards is not None
        found: Part = {}
        for name, param in self._gradient_reducer.named():
            for each in self._division.shards.kept(param, [number]):
                found.setdefault(name, {})[each.piece.begin] = _values([each])[0].clone(), self.state.get(each.view)
        return found

    def join_parts(self, parts: Sequence[Part]) -> None:
        """Write the values of all ``parts`` to the parameters, and make this rank's state the whole again."""
        shards, whole = self._division.shards, {}
        assert shards is not None
        for name, param in self._gradient_reducer.named():
            pieces = {begin: piece for part in parts for begin, piece in part.get(name, {}).items()}
            for begin, (values, _) in pieces.items():
                flat(param)[begin : begin + values.numel()] = values
            if states := {begin: state for begin, (_, state) in pieces.items() if state is not None}:
                whole[param] = shards.joined(param, states)
        self._division.consolidated = whole
        self._division.take_back(self.state)

    def take_back(self) -> None:
        """Make a state that was gathered on every rank whole again on this one, until the next step."""
        if self._division.is_everywhere:
            self._division.take_back(self.state)

    def drop_parts(self) -> None:
        """Forget this rank's parts, which other ranks replace."""
        if not self._division.is_whole:
            self.state.clear()
            self._division.let_go(self.state)

    def _vote(self, snapshot: StepDigests | None, others: dict[str, Any]) -> None:
        try:
            self._reducer.vote_with(snapshot)
        except CollectiveError:
            if self._copies > 1:
                self._division.ahead = self._parts_ahead(others)
            raise

    def _parts_ahead(self, others: dict[str, Any]) -> dict[int, Part]:
        shards = self._division.shards
        assert shards is not None
        found: dict[int, Part] = {number: {} for number in shards.parts}
        named = {param: name for name, param in self._gradient_reducer.named()}
        kept = [each for param in named for each in shards.kept(param)]
        for each, (clone, state) in zip(kept, self._stepped_aside(kept, others), strict=True):
            found[each.piece.owner].setdefault(named[each.param], {})[each.piece.begin] = flat(clone), state
        return found

    def _stepped_aside(self, pieces: Sequence[Kept], others: dict[str, Any]) -> list[tuple[torch.Tensor, State | None]]:
        """Values and states of ``pieces`` after a step with clones of them; the pieces stay as they are."""
        clones, each_clone = defaultdict[torch.Tensor, list[torch.Tensor]](list), list[torch.Tensor]()
        rest, settings = copy.deepcopy(of_no_tensor(self.state)), [dict(group) for group in self.param_groups]
        for each in pieces:
            clone, grad = each.view.detach().clone(), gradient(each)
            clone.grad = None if grad is None else grad.detach().clone()
            if each.view in self.state:
                self.state[clone] = {key: _cloned(value) for key, value in self.state[each.view].items()}
            clones[each.param].append(clone)
            each_clone.append(clone)
        with listed(self.param_groups, lambda param: clones.get(param, [])):
            super(ReducingOptimizer, self).step(**others)
        found = [(clone, self.state.pop(clone, None)) for clone in each_clone]
        for group, before in zip(self.param_groups, settings, strict=True):
            group.update(before)  # an optimizer may count its steps there
        for key in of_no_tensor(self.state):
            del self.state[key]
        self.state.update(rest)
        return found

    @property
    def _gradient_reducer(self) -> TorchReducer:
        assert isinstance(self._reducer, TorchReducer)
        return self._reducer

    @property
    def _process_set(self) -> ProcessSet:
        return self._reducer.process_set

    def _is_shared(self) -> bool:
        return takes_part(self._process_set, "an optimizer's step") and len(self._process_set.ranks) > self._copies

    @property
    def _copies(self) -> int:
        """Number of ranks that keep each part; copies are for steps that are voted."""
        return 1 if self._reducer.step_vote is None else self._replicas

    def _divided(self) -> StateShards:
        """Return the assignment of elements; the first call drops the state of other ranks' elements."""
        reducer, division = self._gradient_reducer, self._division
        session = current("step()")
        lane, hosts = reducer.lane(session, ".parameters"), session.topology.hosts
        holders = copy_holders([hosts[rank] for rank in self._process_set.ranks]) if self._copies > 1 else []
        if division.shards is not None and not division.shards.fits(lane.rank, lane.size, holders):
            division.take_back(self.state)
        shards = division.shards or StateShards(lane.rank, lane.size, self._cuts, holders)
        shards.cover(param for _, param in reducer.named())
        if division.shards is None:
            shards.keep_own(self.state)
            division.shards = shards
            answer(self.state, refuse_lookup)
        return shards


def require_shareable(
    optimizer: torch.optim.Optimizer, op: ReduceOp, has_virtual_workers: bool, shard_state: bool | str, replicas: int
) -> None:
    """Raise ``UsageError`` for an optimizer that cannot, or may not be able to, step a part of the parameters."""
    _require_copyable(optimizer, shard_state, replicas)
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


def _require_copyable(optimizer: torch.optim.Optimizer, shard_state: bool | str, replicas: int) -> None:
    """Raise ``UsageError`` for wrong ``replicas``, and if the step of a tensor depends on the tensors beside it.

    PyTorch's Adafactor takes ``eps=None`` from the dtype of the first tensor of a group, for all of them.
    """
    if replicas not in (1, 2):
        raise UsageError(f"replicas={replicas!r}: use 1, or 2 to keep each part of the state on two ranks")
    if replicas == 1:
        return
    if shard_state is False:
        raise UsageError(
            "replicas=2 without shard_state: every rank keeps the whole state already; pass shard_state=True, or leave "
            "replicas out"
        )
    for group in optimizer.param_groups if isinstance(optimizer, getattr(torch.optim, "Adafactor", ())) else ():
        if group["eps"][0] is None and len({param.dtype for param in group["params"]}) > 1:
            raise UsageError(
                "replicas=2 with Adafactor, which takes eps=None from the first tensor of a group, and a group of "
                "several dtypes: pass eps=(1e-7, 1e-3), or a group for each dtype"
            )


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
    answer(optimizer.state, dict)
    try:
        yield
    finally:
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = kept
        hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks = of_all
        answer(optimizer.state, refuse_lookup)
        if scale is not None:
            optimizer.grad_scale = scale  # type: ignore[attr-defined]


def _values(pieces: Sequence[Kept]) -> list[torch.Tensor]:
    return [flat(param)[piece.begin : piece.end] for param, piece, _ in pieces]


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
