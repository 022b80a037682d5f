"""Check that the loss of a model is the mean over its rows, as the averaging of shard gradients assumes.

require_mean(model, data, values)       # raises UsageError if the same rows twice have another loss
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from farandole.errors import UsageError
from farandole.keras.backends import backend
from farandole.keras.variables import AnyArray

_ROWS = 32
_TOLERANCE = 1e-3
"""Relative tolerance: above the rounding of float16 and bfloat16; a sum instead of a mean would double."""


def require_mean(model: Any, data: Any, values: Sequence[tuple[Any, AnyArray]]) -> None:
    """Raise ``UsageError`` if the loss of ``data`` changes when each row is doubled.

    ``values``: current values of the model's variables. The losses are computed without training, and nothing is
    changed. A loss that differs between two equal calls (random layers) cannot be checked.
    """
    rows = keras.tree.map_structure(lambda each: None if each is None else each[:_ROWS], data)
    twice = keras.tree.map_structure(lambda each: None if each is None else _twice(each), rows)
    first, again, doubled = (_loss(model, given, values) for given in (rows, rows, twice))
    if first != again or abs(doubled - first) <= _TOLERANCE * max(abs(first), abs(doubled)):
        return
    raise UsageError(
        f"VirtualWorkersCallback: the loss of {model.name} is no mean over rows: it is {first:.6g} for some rows of "
        f"the first batch, and {doubled:.6g} where each of them stands there twice. Gradients of shards are averaged "
        "by their rows, which makes those of a batch where a loss is a mean: use keras.ops.mean where add_loss(), "
        "compute_loss() or a loss of your own take a sum over rows"
    )


def _twice(each: Any) -> Any:
    return keras.ops.concatenate([keras.ops.convert_to_tensor(each)] * 2)


def _loss(model: Any, data: Any, values: Sequence[tuple[Any, AnyArray]]) -> float:
    """Total loss of ``data`` with ``values`` for the variables; the model's own values are neither read nor changed."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    held = [(variable, keras.ops.convert_to_tensor(value, variable.dtype)) for variable, value in values]
    compute = getattr(model, "_compute_loss", model.compute_loss)  # handles overrides without training=
    with backend.untracked(), keras.StatelessScope(state_mapping=held, collect_losses=True):
        model._clear_losses()
        predicted = model(x, training=False)
        return float(keras.ops.convert_to_numpy(compute(x=x, y=y, y_pred=predicted, sample_weight=weights)))
