"""State dicts with and without their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch


@final
@dataclass(frozen=True, slots=True)
class TensorPlaceholder:
    """Stands for a tensor in a state dict that travels without its tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorPlaceholder:
        """Placeholder for ``tensor``."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def empty(self) -> torch.Tensor:
        """A tensor that fits."""
        return torch.empty(self.shape, dtype=self.dtype)


def replace(tree: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts, lists and tuples, in which ``change`` has been applied to every ``kind``, in order."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: replace(value, kind, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(replace(value, kind, change) for value in tree)
    return tree
