"""``load_model``: a saved model whose optimizer continues with the gradients of all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import keras

from farandole.errors import UsageError
from farandole.keras.compression import CompressorLike, NoneCompressor
from farandole.keras.optimizer import DistributedOptimizer
from farandole.keras.optimizer_tree import leaves


def load_model(
    filepath: str | os.PathLike[str],
    custom_optimizers: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: CompressorLike = NoneCompressor,
    legacy_opts: bool = False,  # noqa: ARG001 (Horovod's: there are none in Keras 3)
    *,
    wrap: Callable[[Any], Any] | None = None,
    **others: Any,
) -> keras.Model:
    """Load a model saved by Keras, and wrap its optimizer, with its state, as a distributed one.

    >>> model = hvd.load_model("runs/a.keras")

    ``custom_optimizers``: optimizer classes that Keras does not know. ``wrap`` makes the distributed optimizer, by
    default ``DistributedOptimizer`` with ``compression`` and no other argument; ``others``: arguments of
    ``keras.saving.load_model``. Raises ``UsageError`` without ``wrap`` for an optimizer that accumulates.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(os.fspath(filepath), custom_objects={**known, **(custom_objects or {})}, **others)
    if getattr(model, "optimizer", None) is not None:
        if wrap is None:
            _refuse_to_guess(model.optimizer)
            model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
        else:
            model.optimizer = wrap(model.optimizer)
    return model


def _refuse_to_guess(optimizer: Any) -> None:
    """Raise ``UsageError`` for an optimizer that accumulates: the file does not say whether it steps with sums."""
    passes = max((leaf.gradient_accumulation_steps or 1 for leaf in leaves(optimizer)), default=1)
    if passes > 1:
        own = f"wrap=lambda optimizer: hvd.DistributedOptimizer(optimizer, backward_passes_per_step={passes}"
        raise UsageError(
            f"load_model() of a model whose optimizer accumulates {passes} batches: the file does not say whether it "
            f"steps with their sum or their mean. For sums, as backward_passes_per_step={passes} makes them, pass "
            f"{own}); for means, as Keras makes them, {own}, average_aggregated_gradients=True)"
        )
