"""Loading of optimizer state without a change of dtypes.

load_exactly(optimizer, state)              # a ``state_dict()`` of the same optimizer on another rank
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from farandole.torch.subclass import loaded_in_place


def load_exactly(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load ``state`` by the optimizer's own method, but keep the dtype of every tensor in it.

    PyTorch casts them to the parameter's dtype. A rank that loads the state would then have other values than the rank
    that saved it: NAdam's ``mu_product`` is float32, even for bfloat16 weights.
    """
    with loaded_in_place(optimizer):  # scripts and schedulers may refer to the groups
        optimizer.load_state_dict(state)
    by_number = state.get("state", {})
    numbers = chain.from_iterable(group["params"] for group in state.get("param_groups", []))
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, param in zip(numbers, params, strict=False):
        if number in by_number and param in optimizer.state:
            _as_given(optimizer.state[param], by_number[number])


def _as_given(loaded: Any, given: Any) -> Any:
    """``loaded`` with the dtypes of ``given``, its source; dicts are changed in place."""
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
