"""Networks that look at a pixel, its neighbours and all bands at once, with convolutions over space and spectrum.

    model = NETWORKS["small"].trained(patches, seed=0)              # after hvd.init(), on all ranks

``lange`` has the settings of the table in Lange et al. (2018): filters 48, 32, 32 of 3 x 3 x 5, dense layers of 128 and
128, plain SGD of rate 1 that decays by 5e-6 a step, mean squared error, batches of 50, 600 epochs: hours, where
``small`` takes seconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, final

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from keras import layers

import farandole.keras as hvd
from examples.common.keras_fit import fit
from examples.hyperspectral.data import Patches
from examples.hyperspectral.scene import Array


@final
@dataclass(frozen=True)
class Network:
    """A network and how it is trained."""

    filters: tuple[int, ...]
    dense: tuple[int, ...]
    patch: int
    loss: str
    epochs: int
    batch: int
    pools: bool
    """Whether two bands become one after the first convolution."""

    def built(self, patches: Patches, seed: int) -> keras.Sequential:
        """Before training, the same on all ranks, and compiled. The last layer is the head, all others are the body."""
        keras.utils.set_random_seed(seed)
        found: list[Any] = [keras.Input(patches.shape)]
        for number, filters in enumerate(self.filters):
            found.append(layers.Conv3D(filters, (3, 3, 5), activation="relu"))
            found += [layers.MaxPooling3D((1, 1, 2))] if self.pools and number == 0 else []
        found += [layers.Flatten(), *(layers.Dense(units, activation="relu") for units in self.dense)]
        model = keras.Sequential([*found, layers.Dense(patches.classes, activation="softmax")])
        rate = keras.optimizers.schedules.InverseTimeDecay(1.0, decay_steps=1, decay_rate=5e-6)
        optimizer = keras.optimizers.SGD(rate) if self.loss == "mse" else keras.optimizers.Adam(3e-3)
        model.compile(hvd.DistributedOptimizer(optimizer), loss=self.loss)
        return model

    def trained(self, patches: Patches, seed: int, **how: Any) -> keras.Sequential:
        """After training; ``how``: what ``fit`` is told beside."""
        model = self.built(patches, seed)
        fit(model, patches, epochs=self.epochs, global_batch=self.batch, seed=seed, **how)
        return model


NETWORKS = {
    "small": Network((12, 16), (32,), 5, "categorical_crossentropy", 8, 64, pools=True),
    "lange": Network((48, 32, 32), (128, 128), 7, "mse", 600, 50, pools=False),
}


def predicted(model: Any, patches: Patches) -> Array:
    """The class that is most probable, for each pixel."""
    found: Array = model.predict(patches.all(), batch_size=1024, verbose=0).argmax(axis=1)
    return found


def accuracy(model: Any, patches: Patches) -> float:
    """Share of the pixels whose class is found."""
    return float((predicted(model, patches) == patches.answers).mean())
