"""Loading the state of an optimizer as it is.

load_exactly(optimizer, state)              # a ``state_dict()`` of the same optimizer on another rank
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from farandole.torch.subclass import loaded_in_place


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load ``state`` as the optimizer does, but leave every tensor of a parameter's state the dtype that it has.

    PyTorch gives them the parameter's. Ranks whose state is loaded would then go on with other numbers than the rank
    that it comes from: NAdam's ``mu_product`` is float32, also for weights of bfloat16.
    """
    with loaded_in_place(optimizer):  # scripts and schedulers may hold the groups
        optimizer.load_state_dict(state)
    by_number = state.get("state", {})
    numbers = chain.from_iterable(group["params"] for group in state.get("param_groups", []))
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, param in zip(numbers, params, strict=False):
        if number in by_number and param in optimizer.state:
            _as_given(optimizer.state[param], by_number[number])


def _as_given(loaded: Any, given: Any) -> Any:
    """``loaded`` with the dtypes of ``given``, from which it was loaded; dicts are changed in place."""
    if isinstance(loaded, torch.Tensor) and isinstance(given, torch.Tensor):
        is_cast = loaded.dtype is not given.dtype and loaded.shape == given.shape
        return given.to(loaded.device) if is_cast else loaded
    if isinstance(loaded, dict) and isinstance(given, dict):
        for key, value in loaded.items():
            loaded[key] = _as_given(value, given.get(key))
        return loaded
    if isinstance(loaded, list | tuple) and type(loaded) is type(given) and len(loaded) == len(given):
        children = list(map(_as_given, loaded, given))
        return type(loaded)(*children) if hasattr(loaded, "_fields") else type(loaded)(children)
    return loaded
