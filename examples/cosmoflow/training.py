"""One elastic training of a network on volumes, by ``fit`` of Keras, on the ranks that there are.

model = train(Plan(epochs=20), source, after_epoch=print)
labels = predicted(model, x)

``train.py`` is the script around it, and ``experiment.py`` what compares it with ridge.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import farandole.keras as hvd
from examples.common.keras_fit import fit
from examples.common.training import SEED_STRIDE
from examples.common.volumes import Array
from examples.cosmoflow.data import augmentation
from examples.cosmoflow.model import MODELS

WARMUP = 0.05
"""Of all steps."""

AfterEpoch = Callable[[int, float], object]
"""Is told, on every rank: how many epochs have passed, and the mean loss of the last one."""


@final
@dataclass(frozen=True)
class Plan:
    """What to train; ``rate`` is warmed up, and decays to zero by a cosine over the epochs."""

    epochs: int = 24
    global_batch: int = 32
    rate: float = 3e-3
    seed: int = 0
    model: str = "statistics"
    dropout: float = 0.2
    augments: bool = True


def train(
    plan: Plan, source: hvd.data.Source, after_epoch: AfterEpoch, *, checkpoints: str = "", ledger: str = ""
) -> keras.Model:
    """The trained model. All ranks call it together, after ``hvd.init()``.

    ``checkpoints``: a folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each
    worker writes down what it has computed. The loss is the mean absolute error, as that of Mathuriya et al. 2018.
    """
    keras.utils.set_random_seed(SEED_STRIDE * plan.seed)
    model = MODELS[plan.model](source[0][0].shape, dropout=plan.dropout)
    steps = plan.epochs * -(-len(source) // plan.global_batch)
    warmup = max(1, round(WARMUP * steps))
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=plan.rate, warmup_steps=warmup)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(rate)), loss="mae")
    fit(
        model,
        source,
        epochs=plan.epochs,
        global_batch=plan.global_batch,
        seed=plan.seed,
        augment=augmentation() if plan.augments else (),
        after_epoch=after_epoch,
        checkpoints=checkpoints,
        ledger=ledger,
    )
    return model


def predicted(model: keras.Model, x: Array) -> Array:
    """Labels of volumes, the mean over eight views of each: what a volume tells does not depend on its orientation."""
    return np.mean([model.predict(view, batch_size=100, verbose=0) for view in views(x)], axis=0)  # type: ignore[no-any-return]


def views(x: Array) -> list[Array]:
    """Volumes as they are, and reflected or with other orders of their axes."""
    orders = [(2, 3, 1), (3, 1, 2), (2, 1, 3), (1, 3, 2)]
    return [x, *(np.flip(x, axis) for axis in (1, 2, 3)), *(x.transpose(0, *order, 4) for order in orders)]
