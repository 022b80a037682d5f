"""Inner optimizers of Keras optimizers that contain others (``LossScaleOptimizer``, ``MultiOptimizer``).

>>> from farandole.keras.optimizer_tree import leaves
>>> [type(leaf).__name__ for leaf in leaves(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))]
['SGD']
"""

from __future__ import annotations

from typing import Any

import keras

from farandole.errors import UsageError


def leaves(optimizer: Any) -> list[keras.optimizers.Optimizer]:
    """Optimizers that change variables: ``optimizer`` itself, or the optimizers that it contains."""
    inner = getattr(optimizer, "inner_optimizer", None)
    held = getattr(optimizer, "optimizers", None) if inner is None else [inner]
    return [leaf for each in held for leaf in leaves(each)] if isinstance(held, list | tuple) else [optimizer]


def passes_of(optimizer: Any, asks: str) -> int:
    """Number of batches per step; raises ``UsageError`` in the name of ``asks`` if leaves have different numbers."""
    found = {leaf.gradient_accumulation_steps or 1 for leaf in leaves(optimizer)}
    if len(found) > 1:
        raise UsageError(
            f"{asks} with a {type(optimizer).__name__} whose optimizers accumulate "
            f"{', '.join(map(str, sorted(found)))} batches: give all of them the same gradient_accumulation_steps"
        )
    return next(iter(found), 1)
