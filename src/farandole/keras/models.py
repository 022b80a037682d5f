"""``load_model``: a saved model whose optimizer goes on with the gradients of all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from farandole.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    *,
    wrap: Callable[[Any], Any] = DistributedOptimizer,
    **others: Any,
) -> keras.Model:
    """Load a model that Keras has saved, and distribute its optimizer, with its state.

    >>> model = hvd.load_model("runs/a.keras")

    ``custom_optimizers``: classes of optimizers that Keras does not know. ``wrap`` makes the distributed optimizer, by
    default ``DistributedOptimizer`` without arguments; others are those of ``keras.saving.load_model``.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(os.fspath(filepath), custom_objects={**known, **(custom_objects or {})}, **others)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = wrap(model.optimizer)
    return model
