"""``TorchState``: a model, its optimizer and other training state, with their handlers.

The names are Horovod's.
"""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch

from farandole.adapters.torch import adapter
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_parts import (
    HandlerRegistry,
    HandlerTable,
    OptimizerPart,
    RandomPart,
    SamplerPart,
    StatePart,
    random_parts,
)
from farandole.elastic.worker.state_parts import StateHandler as StateHandler  # noqa: PLC0414 (it is exported)
from farandole.elastic.worker.step_vote import Voter
from farandole.runtime.collectives.leaves import Leaves
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.exact_load import load_exactly
from farandole.torch.reducing_optimizer import ReducingOptimizer
from farandole.torch.sharded_optimizer import ShardedOptimizer

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

        False for sharded state: the part of a lost rank exists only as of the last commit, so all go back to it.
        """
        return super().can_vote and not isinstance(self.value, torch.optim.LBFGS | ShardedOptimizer)

    def abandon(self) -> None:
        """See ``StatePart``; shards of virtual workers may have changed the model's statistics."""
        if isinstance(self.value, ReducingOptimizer):
            self.value._reducer.abandon()

    def before_change(self) -> None:
        """See ``StatePart``."""
        if isinstance(self.value, ShardedOptimizer):
            self.value.consolidate_state_dict(to=None)

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


class TorchState(ObjectState):
    """Training state that survives when workers join and leave; its values are attributes.

    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, scheduler=scheduler, epoch=0)

    Models, optimizers, samplers, generators, and all objects with ``state_dict`` and ``load_state_dict`` are saved by
    these, other values by pickle; the global random generators are always included.

    With a ``DistributedOptimizer`` every step is voted before it is applied, and nothing has to be copied: a fault
    costs the interrupted step, and ``commit`` marks where a planned change of workers may happen. With any other
    optimizer, or with Adasum, LBFGS or ``shard_state``, ``commit`` copies everything, and after a fault the state goes
    back to the last commit. A replacement of a registered object (``state.model = other``) is saved at once, and stays
    after a fault, because the script's own variables refer to it: call ``commit`` next.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        super().__init__(**others, model=model, optimizer=optimizer)

    def _generators(self) -> dict[str, RandomPart]:
        own = RandomPart(torch.get_rng_state, torch.set_rng_state, _encoded, _decoded)
        return {"torch.random": own, **random_parts()}
