"""Insertion of a mixin class before the class of a user's optimizer.

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
    """Base of the mixins before the class of a user's optimizer, which share its groups and its state.

    Groups and state keep their identity: the user's optimizer refers to them, and so does a scheduler made for it.
    """

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state like the user's class, into the existing group and state objects."""
        with loaded_in_place(self):
            super().load_state_dict(*args, **kwargs)


@contextmanager
def loaded_in_place(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Context of a load in which the groups and the state of ``optimizer`` keep their identity."""
    groups, state = optimizer.param_groups, optimizer.state
    yield
    for kept, loaded in zip(groups, optimizer.param_groups, strict=True):
        _fill(kept, loaded)
    _fill(state, optimizer.state)
    optimizer.param_groups, optimizer.state = groups, state


def _fill(kept: dict[Any, Any], loaded: dict[Any, Any]) -> None:
    items = list(loaded.items())  # a list: a user's class may load in place, so that ``loaded`` is ``kept``
    kept.clear()
    kept.update(items)


def put_before(front: type[FrontOptimizer], optimizer: torch.optim.Optimizer) -> Any:
    """New object of both classes, ``front`` first, that shares the state of ``optimizer``."""
    cls: Any = type(type(optimizer).__name__, (front, type(optimizer)), {})
    fronted = cls.__new__(cls)
    fronted.__dict__.update(optimizer.__dict__)
    fronted.__dict__.pop("_front", None)  # an earlier front object, which this one replaces
    if fronted.__dict__.pop("step", None) is not None:  # a scheduler's wrapper, which would bypass the mixin's ``step``
        optimizer.__dict__["_opt_called"] = True  # the scheduler warns without it: this optimizer is not stepped itself
    optimizer.__dict__["_front"] = weakref.ref(fronted)
    return fronted


def outermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Optimizer that steps instead of ``optimizer``: the last front object put before it, if that still exists."""
    while (front := optimizer.__dict__.get("_front", _nobody)()) is not None:
        optimizer = front
    return optimizer


def _nobody() -> None: ...


def refuse_copies(self: torch.optim.Optimizer, protocol: object = None) -> NoReturn:  # noqa: ARG001 (of pickle)
    """Replacement of ``__reduce_ex__`` that raises ``UsageError``.

    A copy would step without the other ranks, or reduce into the original's gradients.
    """
    raise UsageError(
        f"a distributed {type(self).__name__} cannot be copied or pickled, as it is connected with other ranks: copy "
        f"the model, make DistributedOptimizer({type(self).__name__}(copy.parameters(), ...)) on every rank, and give "
        "it this one's state_dict() by load_state_dict()"
    )
