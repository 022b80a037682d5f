"""One job of ``test_jets``: ``farandole run -np N python train_jets.py DATA RESULT``.

Rank 0 leaves in ``RESULT.npz`` the losses of two epochs and the weights after them; on one rank also those of a loop
that knows nothing of ranks: Keras alone, batches of the same events.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from examples.common.training import SEED_STRIDE
from examples.jets.images import SYMMETRIES, images
from examples.jets.training import GLOBAL_BATCH, Hyper, train
from farandole.data.loading.augment import generator

EPOCHS, SEED = 2, 3
HYPER = Hyper(filters=4, dense=16)


def plain(folder: str) -> keras.Model:
    """The same training without a word of Farandole's, but its order of samples and its random numbers."""
    keras.utils.set_random_seed(SEED)
    source = images(folder, "train")
    layers = []
    for filters in (4, 8, 16):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D()]
    dense = [keras.layers.Flatten(), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((64, 64, 1)), *layers, *dense])
    rate = keras.optimizers.schedules.CosineDecay(3e-3, EPOCHS * len(source) // GLOBAL_BATCH)
    model.compile(keras.optimizers.Adam(rate), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    for epoch in range(EPOCHS):
        order = source.layout.order(len(source), SEED_STRIDE * SEED, epoch)
        for at in range(0, len(source), GLOBAL_BATCH):
            x, y = zip(*(seen(source[i], epoch, i) for i in order[at : at + GLOBAL_BATCH]), strict=True)
            model.train_on_batch(np.stack(x), np.array(y))
    return model


def seen(sample: Any, epoch: int, number: int) -> Any:
    """A sample after the symmetries, drawn by hand."""
    for step, symmetry in enumerate(SYMMETRIES):
        sample = symmetry(sample, generator(SEED_STRIDE * SEED, epoch, number, step))
    return sample


def main() -> None:
    """Train, and save."""
    folder, result = sys.argv[1:]
    hvd.init()
    losses: list[float] = []
    model = train(folder, HYPER, EPOCHS, SEED, lambda *said: losses.append(said[1]))
    found = {"losses": np.array(losses), **{f"w{i}": each for i, each in enumerate(model.get_weights())}}
    if hvd.size() == 1:
        found |= {f"plain{i}": each for i, each in enumerate(plain(folder).get_weights())}
    if hvd.rank() == 0:
        np.savez(result, **found)
    hvd.shutdown()


if __name__ == "__main__":
    main()
