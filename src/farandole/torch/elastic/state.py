"""``TorchState``: a model, its optimizer and other training state, with their handlers.

The names are Horovod's.

Recovery of optimizers whose state is in parts, each on two ranks, after the loss of some of the ranks.

claims = allgather_object(ShardClaim(step=7, parts={"optimizer": (3, (0, 2))}))
recovery_plan(claims)                   # the same on every rank: which rank sends which part

Pure. A vote that some ranks saw pass and others did not is settled here: if any rank is a step further, those whose
vote failed give their parts as of that step, which they have kept, too (``ShardedOptimizer``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, final

import torch

from farandole import events
from farandole.adapters.torch import adapter
from farandole.elastic.membership.vote import NEW
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_parts import (
    HandlerRegistry,
    HandlerTable,
    OptimizerPart,
    RandomPart,
    SamplerPart,
    StatePart,
    copied,
    random_parts,
)
from farandole.elastic.worker.state_parts import StateHandler as StateHandler  # noqa: PLC0414 (it is exported)
from farandole.elastic.worker.state_sync import Inventory
from farandole.elastic.worker.step_vote import Voter
from farandole.errors import StartError
from farandole.runtime.collectives.leaves import Leaves
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.collectives.tree_broadcast import broadcast_tree
from farandole.runtime.session.init import current
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.functions import load_exactly
from farandole.torch.mpi_ops import ops
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.sharded_optimizer import ShardedOptimizer
from farandole.torch.state_division import Part


class ShardClaim(NamedTuple):
    """Claim of one rank when a generation begins: the state that it has.

    ``step``: as in ``VoteClaim``. ``parts``: by optimizer, the number of parts in the last generation and those that it
    keeps; ``None`` if it has the whole state. ``is_ahead``: it has its parts as of the next step, too.
    ``committed``: step of its last commit, ``NEW`` if there was none.
    """

    step: int
    parts: Mapping[str, tuple[int, tuple[int, ...]] | None]
    is_ahead: bool = False
    committed: int = NEW


class RecoveryPlan(NamedTuple):
    """Plan by which the ranks get whole states again, as of ``step`` (``NEW``: no rank has one).

    ``sources``: by optimizer, the rank that sends each part; empty if a rank has the whole, which the others receive
    by the sync of the state. ``lost``: by optimizer, the parts that no rank has; then all go back to ``committed``.
    """

    step: int
    sources: dict[str, list[int]]
    lost: dict[str, list[int]]
    committed: int

    @property
    def goes_back(self) -> bool:
        """True if the ranks cannot go on from ``step``."""
        return bool(self.lost) or (self.step == NEW and self.committed > NEW)


def recovery_plan(claims: Sequence[ShardClaim]) -> RecoveryPlan:
    """Decide which rank sends which part.

    >>> torn = [ShardClaim(7, {"a": (3, (0, 2))}), ShardClaim(6, {"a": (3, (1, 0))}, is_ahead=True)]
    >>> recovery_plan(torn)
    RecoveryPlan(step=7, sources={'a': [0, 1, 0]}, lost={}, committed=-1)
    """
    step = max(claim.step for claim in claims)
    sources, lost = dict[str, list[int]](), dict[str, list[int]]()
    for name in claims[0].parts if step > NEW else ():
        found = {rank: claim.parts[name] for rank, claim in enumerate(claims) if _reaches(claim, step)}
        current = [parts for rank, parts in found.items() if claims[rank].step == step]
        if None in current:
            sources[name] = []
            continue
        size = next(parts[0] for parts in current if parts is not None)
        having = {rank: parts[1] for rank, parts in found.items() if parts is not None}
        by_part = [next((rank for rank, own in having.items() if part in own), -1) for part in range(size)]
        sources[name] = by_part
        if -1 in by_part:
            lost[name] = [part for part, rank in enumerate(by_part) if rank < 0]
    return RecoveryPlan(step, sources, lost, max(claim.committed for claim in claims))


def _reaches(claim: ShardClaim, step: int) -> bool:
    return claim.step == step or (claim.step == step - 1 and claim.step > NEW and claim.is_ahead)


SamplerStateHandler = SamplerPart


@final
class ModelStateHandler(StatePart):
    """A model: its parameters are the same on all ranks; its buffers may hold statistics of the rank's own batches."""

    is_fixed: ClassVar[bool] = True

    def tree(self) -> Any:
        """See ``StatePart``."""
        return self.value.state_dict(keep_vars=True)

    def own_tensors(self) -> set[int]:
        """See ``StatePart``."""
        return {id(buffer) for buffer in self.value.buffers()}


@final
class OptimizerStateHandler(OptimizerPart):
    """An optimizer: its state, and the settings of its groups, which schedulers change between steps."""

    @property
    def voter(self) -> Voter | None:
        """See ``OptimizerPart``."""
        return self.value._reducer if isinstance(self.value, ReducingOptimizer) else None

    @property
    def can_vote(self) -> bool:
        """See ``OptimizerPart``; false for LBFGS, whose line search changes parameters before the step is over.

        False for sharded state without copies: the part of a lost rank exists only as of the last commit.
        """
        if isinstance(self.value, ShardedOptimizer):
            return super().can_vote and self.value.can_vote
        return super().can_vote and not isinstance(self.value, torch.optim.LBFGS)

    def abandon(self) -> None:
        """See ``StatePart``; shards of virtual workers may have changed the model's statistics."""
        if isinstance(self.value, ReducingOptimizer):
            self.value._reducer.abandon()

    def before_change(self) -> None:
        """See ``StatePart``."""
        if isinstance(self.value, ShardedOptimizer):
            self.value.consolidate_state_dict(to=None)

    def begin_anew(self, name: str) -> None:
        """See ``StatePart``; all ranks divide a gathered state again, as new ranks do."""
        super().begin_anew(name)
        if isinstance(self.value, ShardedOptimizer):
            self.value.take_back()

    def load(self, tree: Any) -> None:
        """See ``StatePart``; without a change of dtypes, because ranks that have the state already do not load it."""
        load_exactly(self.value, tree)

    def save(self) -> None:
        """See ``StateHandler``."""
        if self.votes:
            self._saved = [dict(group) for group in self.value.param_groups]
        else:
            self.before_change()
            super().save()

    def restore(self) -> None:
        """See ``StateHandler``."""
        if self.votes:
            for group, saved in zip(self.value.param_groups, self._saved, strict=True):
                group.update(saved)
        else:
            super().restore()


@final
class ScalerStateHandler(StatePart):
    """A ``GradScaler``, which a step without a vote leaves in an intermediate state."""

    def begin_anew(self, name: str) -> None:
        """Forget which gradients are unscaled already, because the gradients are dropped."""
        if self.value.is_enabled():  # a disabled scaler has no such attribute
            self.value._per_optimizer_states.clear()


@final
class GeneratorStateHandler(StatePart):
    """A ``torch.Generator`` of the script, the same on all ranks."""

    def tree(self) -> Any:
        """See ``StatePart``."""
        return _encoded(self.value.get_state())

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self.value.set_state(_decoded(tree))


def _encoded(state: torch.Tensor) -> bytes:
    return bytes(state.tolist())


def _decoded(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


registry = HandlerRegistry(
    [
        (ElasticSampler, SamplerStateHandler),
        (torch.nn.Module, ModelStateHandler),
        (torch.optim.Optimizer, OptimizerStateHandler),
        (torch.amp.GradScaler, ScalerStateHandler),
        (torch.Generator, GeneratorStateHandler),
    ]
)


def get_handler_registry() -> HandlerTable:
    """Classes of values with their handlers; the first match is used.

    >>> hvd.elastic.state.set_handler_registry([(MyClass, MyHandler), *hvd.elastic.state.get_handler_registry()])
    """
    return registry.table


def set_handler_registry(table: HandlerTable) -> None:
    """Replace the table, for states made from now on. See ``get_handler_registry``."""
    registry.replace(table)


class _Committed(NamedTuple):
    """Copy of everything at a commit: skeletons with their tensors, and objects."""

    step: int
    trees: dict[str, tuple[Any, list[torch.Tensor]]]
    objects: dict[str, Any]


def _on_host(tree: tuple[Any, list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
    """Copy of a skeleton and its tensors, in host memory."""
    skeleton, tensors = tree
    return copy.deepcopy(skeleton), [tensor.detach().to("cpu", copy=True) for tensor in tensors]


class TorchState(ObjectState):
    """Training state that survives when workers join and leave; its values are attributes.

    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, scheduler=scheduler, epoch=0)

    Models, optimizers, samplers, generators, and all objects with ``state_dict`` and ``load_state_dict`` are saved by
    these, other values by pickle; the global random generators are always included.

    With a ``DistributedOptimizer`` every step is voted before it is applied, and nothing has to be copied: a fault
    costs the interrupted step, and ``commit`` marks where a planned change of workers may happen. With any other
    optimizer, or with Adasum, LBFGS or ``shard_state``, ``commit`` copies everything, and after a fault the state goes
    back to the last commit. With ``shard_state`` and ``replicas=2`` a fault costs the interrupted step, too, unless
    both ranks that keep a part are lost; for that case ``commit`` copies everything to host memory.

    A replacement of a registered object (``state.model = other``) is saved at once, and stays after a fault, because
    the script's own variables refer to it: call ``commit`` next.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        self._committed: _Committed | None = None
        super().__init__(**others, model=model, optimizer=optimizer)

    @property
    def content(self) -> str:
        """See ``ObjectState``; without the trees that ranks may have in parts, of which it has but the names."""
        fixed = {name: part for name, part in self._parts.items() if part.is_fixed}
        names = [*(self._parts.keys() - fixed), *self._handlers, *self._saved]
        return ", ".join(sorted([*Inventory(fixed, self._leaves).built(), *names]))

    def commit(self) -> None:
        """See ``State``; with ``replicas=2``, everything is copied, for the loss of both ranks that keep a part."""
        if self._doubled():
            self.before_change()
            trees = {name: _on_host(self._leaves.flatten(part.tree())) for name, part in self._parts.items()}
            self._committed = _Committed(self._step_vote.step, trees, copied(self._objects()))
        super().commit()

    def sync(self) -> None:
        """See ``State``; with ``replicas=2``, what the ranks keep in parts is joined first."""
        if doubled := self._doubled():
            self._recover(doubled)
        super().sync()

    def _doubled(self) -> dict[str, ShardedOptimizer]:
        """Optimizers whose state is in parts, each on two ranks."""
        values = {name: part.value for name, part in self._parts.items() if self._votes}
        return {name: value for name, value in values.items() if isinstance(value, ShardedOptimizer)}

    def _recover(self, doubled: dict[str, ShardedOptimizer]) -> None:
        """Make the sharded states whole on the ranks that go on. Collective."""
        parts = {name: optimizer.parts_here for name, optimizer in doubled.items()}
        is_ahead = any(optimizer.is_ahead for optimizer in doubled.values())
        step = self._job_state.step
        claim = ShardClaim(step, parts, is_ahead, self._committed.step if self._committed else NEW)
        plan = recovery_plan(allgather_object(claim, "elastic.parts"))
        if plan.goes_back:
            self._go_back(plan, doubled)
            return
        found: dict[str, list[Part]] = {}
        for name, sources in plan.sources.items():
            label, found[name] = f"elastic.{name}", []
            for number, source in enumerate(sources):
                sent = partial(doubled[name].part, number, ahead=step < plan.step)
                found[name].append(broadcast_tree(ops, self._leaves, sent, source, label))
        # From here on nothing waits for a peer. Before the first write: a rank that is behind, or has yet to receive
        # the whole, claims nothing until it is synchronized.
        if any(parts[name] and (step < plan.step or not found.get(name)) for name in doubled):
            self._is_whole, self._joined = False, True
        for name, optimizer in doubled.items():
            if parts[name] and found.get(name):
                optimizer.join_parts(found[name])
            else:
                optimizer.drop_parts()

    def _go_back(self, plan: RecoveryPlan, doubled: dict[str, ShardedOptimizer]) -> None:
        """Load the last commit, because parts are lost; raises ``StartError`` if no rank has one."""
        lost = ", ".join(f"part {part} of {name}" for name, parts in plan.lost.items() for part in parts)
        why = f"both ranks that kept a part of the optimizer's state (replicas=2) were lost together: {lost}"
        why = why if lost else "every rank that had the state of the last step was lost"
        if plan.committed == NEW:
            raise StartError(
                f"{why}; and no commit() had copied the state before. Start the job again; what goes on then is its "
                "last checkpoint"
            )
        if current().topology.rank == 0:
            events.logger.warning("%s. The training goes back to its last commit, of step %d", why, plan.committed)
        for optimizer in doubled.values():
            optimizer.drop_parts()
        self._is_whole, self._joined = False, self._committed is None
        if self._committed is not None:
            for handler in self._handlers.values():
                handler.restore()
            step, trees, objects = self._committed
            put = {name: self._leaves.put(*_on_host(tree))[0] for name, tree in trees.items()}
            self.load_state_dict({"step": step, "trees": put, "objects": objects})
            self._step_vote.is_applying = False

    def _generators(self) -> dict[str, RandomPart]:
        own = RandomPart(torch.get_rng_state, torch.set_rng_state, _encoded, _decoded)
        return {"torch.random": own, **random_parts()}
