"""``TorchState``: a model, its optimizer, and whatever else training must not lose."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_parts import Leaves, StateHandler
from farandole.torch.elastic.parts import (
    GeneratorStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    ScalerStateHandler,
    TensorLeaves,
    get_handler_registry,
    handler_for,
    random_parts,
    set_handler_registry,
)
from farandole.torch.optimizer import ReducingOptimizer

__all__ = [
    "GeneratorStateHandler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ScalerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """Training state that survives when workers come and go; its values are attributes.

    >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, scheduler=scheduler, epoch=0)

    Models, optimizers, samplers, generators, and everything with ``state_dict`` and ``load_state_dict`` are kept by
    these, other values by pickling them; the global random generators are always part of it.

    With a ``DistributedOptimizer`` every step is voted before it is applied, and nothing has to be copied: a fault
    costs the step it interrupts, and ``commit`` says where a planned change may happen. With any other optimizer,
    or with Adasum or LBFGS, ``commit`` copies everything, and a fault goes back to the last one.
    """

    _leaves: ClassVar[Leaves[Any]] = TensorLeaves()

    def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        self._random = random_parts()
        super().__init__(**others, model=model, optimizer=optimizer)

    def restore(self) -> None:
        """See ``ObjectState``; random generators are as after the last step, or the last ``save``."""
        super().restore()
        for part in self._random.values():
            part.restore()

    def _handler(self, value: Any) -> StateHandler | None:
        return handler_for(value)

    def _optimizers(self) -> dict[str, Any]:
        return {name: part.value for name, part in self._parts.items() if isinstance(part, OptimizerStateHandler)}

    def _connect(self) -> None:
        """See ``ObjectState``: optimizers vote, if all can."""
        super()._connect()
        self._parts |= self._random
        optimizers = self._optimizers().values()
        self._votes = bool(optimizers) and all(map(_can_vote, optimizers))
        for part in self._parts.values():
            part.votes = self._votes
        if self._votes:
            self._step_vote.on_voted = self._save_random
            for optimizer in optimizers:
                optimizer._reducer.step_vote = self._step_vote

    def _save_random(self) -> None:
        for part in self._random.values():
            part.save()

    def _arrange(self, step: int) -> None:
        super()._arrange(step)
        for name, optimizer in self._optimizers().items():
            if isinstance(optimizer, ReducingOptimizer):
                optimizer._reducer.rejoin(f"optimizer.{name}")
        for part in self._parts.values():
            if isinstance(part, ScalerStateHandler):
                part.begin_anew()


def _can_vote(optimizer: Any) -> bool:
    """A line search changes parameters before its step is over; and all ranks must be there to vote."""
    return (
        isinstance(optimizer, ReducingOptimizer)
        and not isinstance(optimizer, torch.optim.LBFGS)
        and optimizer._reducer.is_global
    )
