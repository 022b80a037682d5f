"""Putting a class of ours before the class of a user's optimizer.

larc = put_before(LARCOptimizer, torch.optim.SGD(params, lr=0.1))
isinstance(larc, torch.optim.SGD)                           # True
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from farandole.errors import UsageError


class FrontOptimizer(torch.optim.Optimizer):
    """Base of the mixins that come before the class of a user's optimizer, and share its groups and its state.

    These stay the objects that they are: the user's optimizer has them, and with it a scheduler that was made for it.
    """

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state as the user's class does, into the groups and the state that are there."""
        with loaded_in_place(self):
            super().load_state_dict(*args, **kwargs)


@contextmanager
def loaded_in_place(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context of a load, which leaves the groups and the state of ``optimizer`` the objects that they are."""
    groups, state = optimizer.param_groups, optimizer.state
    yield
    for kept, loaded in zip(groups, optimizer.param_groups, strict=True):
        _fill(kept, loaded)
    _fill(state, optimizer.state)
    optimizer.param_groups, optimizer.state = groups, state


def _fill(kept: dict[Any, Any], loaded: dict[Any, Any]) -> None:
    items = list(loaded.items())  # a class of the user's may have loaded in place
    kept.clear()
    kept.update(items)


def put_before(front: type[FrontOptimizer], optimizer: torch.optim.Optimizer) -> Any:
    """A new object of both classes, whose state is that of ``optimizer``; ``front`` comes first."""
    cls: Any = type(type(optimizer).__name__, (front, type(optimizer)), {})
    fronted = cls.__new__(cls)
    fronted.__dict__.update(optimizer.__dict__)
    fronted.__dict__.pop("_front", None)  # of another one, which this one takes the place of
    if fronted.__dict__.pop("step", None) is not None:  # a scheduler has put its own there, which would bypass ours
        optimizer.__dict__["_opt_called"] = True  # by which it tells whether there was a step: there will be none
    optimizer.__dict__["_front"] = weakref.ref(fronted)
    return fronted


def outermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that steps in the place of ``optimizer``: what was put before it last, if that is still there."""
    while (front := optimizer.__dict__.get("_front", _nobody)()) is not None:
        optimizer = front
    return optimizer


def _nobody() -> None: ...


def refuse_copies(self: torch.optim.Optimizer, protocol: object = None) -> NoReturn:  # noqa: ARG001 (of pickle)
    """Stands for ``__reduce_ex__``: a copy would step without the other ranks, or reduce into the original's gradients.

    Raises ``UsageError``.
    """
    raise UsageError(
        f"a distributed {type(self).__name__} cannot be copied or pickled, as it is connected with other ranks: copy "
        f"the model, make DistributedOptimizer({type(self).__name__}(copy.parameters(), ...)) on every rank, and give "
        "it this one's state_dict() by load_state_dict()"
    )
