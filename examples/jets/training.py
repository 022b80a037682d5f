"""The network and its elastic training, on the ranks that there are.

    model = train(folder, Hyper(), epochs=4, seed=0, after_epoch=print)         # after hvd.init(), on all ranks

The layers are those of the talk's search: convolutions with a pooling after each, a dense layer, dropout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import farandole.keras as hvd
from examples.common.keras_fit import fit
from examples.common.training import staged
from examples.jets.collisions import PIXELS, Array
from examples.jets.images import SYMMETRIES, images

GLOBAL_BATCH = 60
"""Events of a step, which up to six workers share evenly."""


@final
@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters, those that the talk has searched; the rate decays to zero by a cosine."""

    filters: int = 8
    kernel: int = 3
    dense: int = 64
    dropout: float = 0.0
    optimizer: str = "Adam"
    rate: float = 3e-3


def network(hyper: Hyper, steps: int) -> keras.Model:
    """The logit of an image of 64 x 64 being a gluino pair, to be trained for so many steps by all ranks."""
    layers: list[Any] = [keras.Input((PIXELS, PIXELS, 1))]
    for level in range(3):
        filters = hyper.filters * 2**level
        layers += [keras.layers.Conv2D(filters, hyper.kernel, padding="same", activation="relu")]
        layers += [keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(hyper.dense, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dropout(hyper.dropout), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(hyper.rate, steps)
    optimizer = hvd.DistributedOptimizer(getattr(keras.optimizers, hyper.optimizer)(rate))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0)])
    return model


def train(
    folder: Path | str,
    hyper: Hyper,
    epochs: int,
    seed: int,
    after_epoch: Callable[[int, float, float], object],
    *,
    stage: str = "",
    limit: str | None = None,
    **kept: str,
) -> keras.Model:
    """The trained model. All ranks call it together, after ``hvd.init()``.

    ``after_epoch`` is told, on every rank, how many epochs have passed, the mean loss of the last one and the accuracy
    in validation. ``stage`` and ``limit``: a cache on each host; ``kept``: ``checkpoints`` and ``ledger`` of ``fit``.
    """
    keras.utils.set_random_seed(seed)
    source = staged(images(folder, "train"), stage, limit)
    x, y = arrays(folder, "val")
    model = network(hyper, epochs * -(-len(source) // GLOBAL_BATCH))

    def validate(epoch: int, loss: float) -> None:
        after_epoch(epoch, loss, model.evaluate(x, y, batch_size=500, verbose=0)[1])

    given: dict[str, Any] = {"augment": SYMMETRIES, "after_epoch": validate, **kept}
    fit(model, source, epochs=epochs, global_batch=GLOBAL_BATCH, seed=seed, **given)
    return model


def arrays(folder: Path | str, name: str) -> tuple[Array, Array]:
    """Images and labels of a set, all at once."""
    source = images(folder, name)
    found, labels = zip(*(source[i] for i in range(len(source))), strict=True)
    return np.stack(found), np.array(labels)


def logits(model: keras.Model, folder: Path | str, name: str) -> Array:
    """What the network says to each event of a set."""
    found: Array = model.predict(arrays(folder, name)[0], batch_size=500, verbose=0)[:, 0]
    return found
