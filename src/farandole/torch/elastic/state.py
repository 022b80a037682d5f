"""``TorchState``: a model, its optimizer, and whatever else training must not lose."""

from __future__ import annotations

from typing import Any, ClassVar

from farandole.adapters.torch import adapter
from farandole.elastic.worker.state import ObjectState
from farandole.elastic.worker.state_parts import HandlerRegistry, RandomPart, StateHandler
from farandole.runtime.collectives.leaves import Leaves
from farandole.torch.elastic.parts import (
    GeneratorStateHandler,
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    ScalerStateHandler,
    get_handler_registry,
    registry,
    set_handler_registry,
    torch_random_parts,
)

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
    or with Adasum or LBFGS, ``commit`` copies everything, and a fault goes back to the last one. What is put in the
    place of a registered object (``state.model = other``) is saved at that moment, and stays after a fault, as the
    script's own variables refer to it: call ``commit`` next.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def __init__(self, model: Any = None, optimizer: Any = None, **others: Any) -> None:
        super().__init__(**others, model=model, optimizer=optimizer)

    def _generators(self) -> dict[str, RandomPart]:
        return torch_random_parts()
