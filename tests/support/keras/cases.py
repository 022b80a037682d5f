"""What the cases of ``on_ranks.py`` share: a model, data, and one worker's training to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

import farandole.keras as hvd
from farandole.keras import variables
from farandole.runtime.collectives.objects import allgather_object, broadcast_object

BACKEND = keras.backend.backend()
ROWS, GLOBAL_BATCH = 96, 12
STEPS = ROWS // GLOBAL_BATCH

Case = Callable[[], None]
Array = npt.NDArray[Any]
CASES: list[Case] = []

random = np.random.default_rng(0)
X: Array = random.normal(size=(ROWS, 5)).astype(np.float32)
Y: Array = (X @ random.normal(size=(5, 2))).astype(np.float32)


def case(function: Case) -> Case:
    """Run this one, too."""
    CASES.append(function)
    return function


def network(seed: int = 1, *layers: Any) -> Any:
    """A model of two layers, after others."""
    keras.utils.set_random_seed(seed)
    own = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((5,)), *layers, *own])


def mine(values: Array) -> Array:
    """This rank's part of each global batch."""
    share = GLOBAL_BATCH // hvd.size()
    parts = [values[i : i + GLOBAL_BATCH][hvd.rank() * share :][:share] for i in range(0, len(values), GLOBAL_BATCH)]
    return np.concatenate(parts)


def fit(model: Any, x: Array = X, y: Array = Y, **how: Any) -> Any:
    """Train on this rank's part; returns the history."""
    how = {"epochs": 2, "callbacks": [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], **how}
    return model.fit(mine(x), mine(y), batch_size=GLOBAL_BATCH // hvd.size(), shuffle=False, verbose=0, **how)


def fit_alone(model: Any, x: Array = X, y: Array = Y, epochs: int = 2) -> None:
    """Train as one worker on all; rank 0 does, and the others get what came of it, as no rank's would differ."""
    if hvd.rank() == 0:
        model.fit(x, y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0, epochs=epochs)
    trained = variables.of_both(model)
    variables.write(trained, broadcast_object(variables.read(trained), 0))


def are_close(a: Any, b: Any, rtol: float = 2e-5) -> None:
    """Fail unless both models have the same weights, up to rounding."""
    for one, other in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=2e-6)


def are_same_everywhere(model: Any) -> None:
    """Fail unless all ranks have the same bits in the model and in its optimizer."""
    said = allgather_object([array.tobytes() for array in variables.read(variables.of_both(model))])
    assert all(each == said[0] for each in said)


def trains_as_one(make: Callable[[], Any], distribute: Callable[[Any], Any], **compiled: Any) -> None:
    """Fail unless ranks, who begin with weights of their own, train as one worker on the joined batch does."""
    alone, together = network(), network(seed=1 + hvd.rank())
    alone.compile(make(), loss="mse", **compiled)
    together.compile(distribute(make()), loss="mse", **compiled)
    fit_alone(alone)
    fit(together)
    are_close(alone, together)
    are_same_everywhere(together)
    assert int(together.optimizer.iterations) == int(alone.optimizer.iterations)


def compiled(optimizer: Any, seed: int = 1) -> Any:
    """A model with the gradients of all ranks."""
    model = network(seed)
    model.compile(hvd.DistributedOptimizer(optimizer), loss="mse")
    return model


def value(of: Any) -> Any:
    """As NumPy has it."""
    return keras.ops.convert_to_numpy(of)


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        variables.settle(self.model)
        self.seen.append(float(value(self.model.optimizer.learning_rate)))


def stopping(last: int) -> list[Any]:
    """A fault after the batch with this number; none of a negative one."""

    def stop(batch: int, logs: Any = None) -> None:
        if batch == last:
            raise InterruptedError

    return [keras.callbacks.LambdaCallback(on_train_batch_end=stop)]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.3),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
    "averaged": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9),
    "scheduled": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.7)),
}
if hasattr(keras.optimizers, "Muon"):  # since Keras 3.10
    OPTIMIZERS["muon"] = lambda: keras.optimizers.Muon(0.01)
