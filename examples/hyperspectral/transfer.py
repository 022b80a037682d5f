"""A network of one scene, taken to another one of which few pixels have labels.

    model = frozen(donor, few_patches)         # the body stays, the head learns
    thawed(model, few_patches)                 # then all of it, the body ten times slower

A layer whose ``trainable`` is false has no gradients: nothing of it is reduced, and the optimizer keeps nothing for it.
An optimizer belongs to the variables that it was built with: who thaws layers compiles with a new one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras

import farandole.keras as hvd
from examples.common.keras_fit import fit
from examples.hyperspectral.data import Patches

HEAD_RATE, BODY_RATE, EPOCHS, BATCH = 3e-3, 3e-4, 40, 24


@final
class AdamByLayer(keras.optimizers.Adam):  # type: ignore[misc]
    """Adam that multiplies the rate of some variables: ``AdamByLayer(3e-3, slow=body.variables, factor=0.1)``."""

    def __init__(self, learning_rate: float, slow: Sequence[Any] = (), factor: float = 1.0, **others: Any) -> None:
        super().__init__(learning_rate, **others)
        self._paths, self._factor = {variable.path for variable in slow}, factor

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """See ``Optimizer``; TensorFlow's optimizers give the variable of TensorFlow in place of that of Keras."""
        own = self._trainable_variables[self._get_variable_index(variable)]
        super().update_step(gradient, variable, learning_rate * (self._factor if own.path in self._paths else 1.0))


def frozen(donor: Any, patches: Patches, seed: int = 0) -> Any:
    """A copy of the donor whose head has learned from the new pixels."""
    model = keras.models.clone_model(donor)
    model.set_weights(donor.get_weights())
    for layer in model.layers[:-1]:
        layer.trainable = False
    return _fit(model, keras.optimizers.Adam(HEAD_RATE), patches, seed)


def thawed(model: Any, patches: Patches, seed: int = 0) -> Any:
    """The model, all of whose layers have learned from the new pixels, those of the body more slowly."""
    model.trainable = True  # and all layers in it
    body = [variable for layer in model.layers[:-1] for variable in layer.variables]
    return _fit(model, AdamByLayer(HEAD_RATE, body, BODY_RATE / HEAD_RATE), patches, seed)


def _fit(model: Any, optimizer: Any, patches: Patches, seed: int) -> Any:
    model.compile(hvd.DistributedOptimizer(optimizer), loss="categorical_crossentropy")
    fit(model, patches, epochs=EPOCHS, global_batch=BATCH, seed=seed)
    return model
