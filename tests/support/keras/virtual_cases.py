"""Virtual workers in ``fit``, as every rank of ``on_ranks.py`` checks them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.errors import UsageError
from farandole.keras import variables
from tests.support.keras.cases import GLOBAL_BATCH, X, Y, are_close, case, network
from tests.support.raising import raises

COUNT, STEPS = 5, 10


def trained(callbacks: list[Any], *layers: Any, rows: int = len(X)) -> Any:
    """A model after ``STEPS`` steps of global batches, of which the last one of an epoch may be smaller."""
    model = network(3, *layers)
    model.compile(keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    epochs = STEPS // -(-rows // GLOBAL_BATCH)
    model.fit(X[:rows], Y[:rows], batch_size=GLOBAL_BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def bits(model: Any) -> list[bytes]:
    """Of the model and its optimizer, but for what each rank has for itself."""
    return [each.tobytes() for each in variables.read(variables.of_both(model))]


@case
def virtual_workers_give_the_same_bits_on_any_number_of_ranks() -> None:
    """With dropout, batch norm, uneven shards, and a callback of one rank alone beside that of all."""
    own = hvd.add_process_set([0]) if hvd.size() > 1 else hvd.global_process_set

    def of(process_set: Any) -> list[bytes]:
        virtual = hvd.callbacks.VirtualWorkersCallback(COUNT, seed=2, process_set=process_set)
        layers = keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)
        model = trained([virtual], *layers, rows=55)
        assert int(model.optimizer.iterations) == STEPS
        return bits(model)

    together = of(hvd.global_process_set)
    assert hvd.allgather_object(together) == [together] * hvd.size()
    if hvd.rank() == 0:
        assert of(own) == together, f"{hvd.size()} ranks have other bits than one"
    hvd.barrier()
    if hvd.size() > 1:
        hvd.remove_process_set(own)


@case
def virtual_workers_train_as_one_worker_does() -> None:
    """Up to rounding; and afterwards ``fit`` is that of Keras again."""
    virtual = hvd.callbacks.VirtualWorkersCallback(COUNT)
    model, alone = trained([virtual]), trained([])
    are_close(model, alone)
    for each in (model, alone):
        each.fit(X, Y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
    are_close(model, alone)
    before = variables.read(model.trainable_variables)
    model.fit(X, Y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0, callbacks=[virtual])
    assert all((a != b).any() for a, b in zip(before, variables.read(model.trainable_variables), strict=True))
    assert np.isfinite(model.history.history["loss"][-1])


@case
def virtual_workers_accumulate_as_one_worker_does() -> None:
    """And batches of one step draw different masks."""

    def made(callbacks: list[Any]) -> Any:
        model = network(3)
        model.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), loss="mse")
        model.fit(X, Y, batch_size=GLOBAL_BATCH, shuffle=False, verbose=0, callbacks=callbacks)
        return model

    are_close(made([hvd.callbacks.VirtualWorkersCallback(COUNT)]), made([]))
    model = network(3, keras.layers.Dropout(0.5))
    model.compile(keras.optimizers.SGD(0.0, gradient_accumulation_steps=8), loss="mse")
    virtual = hvd.callbacks.VirtualWorkersCallback(COUNT)
    same = np.repeat(X[:1], 4 * GLOBAL_BATCH, 0), np.repeat(Y[:1], 4 * GLOBAL_BATCH, 0)
    model.fit(*same, batch_size=GLOBAL_BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[virtual])
    first, second = model.history.history["loss"]
    assert first != second


class OwnStep(keras.Model):  # type: ignore[misc]
    """Model whose ``train_step`` does more than one step of the optimizer's."""

    def train_step(self, *given: Any) -> Any:
        raise AssertionError(f"train_step{given} was called")


@case
def virtual_workers_refuse_a_train_step_of_the_models_own() -> None:
    """Of its class, or of one instance."""
    inputs = keras.Input((5,))
    of_class, of_instance = OwnStep(inputs, keras.layers.Dense(2)(inputs)), network()
    of_instance.train_step = of_class.train_step
    for model in (of_class, of_instance):
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        with raises(UsageError, "override compute_loss()"):
            model.fit(X, Y, verbose=0, callbacks=[hvd.callbacks.VirtualWorkersCallback(COUNT)])


@case
def virtual_workers_need_the_optimizer_alone() -> None:
    """What cannot be is refused before the first step."""
    for optimizer, text in (
        (hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "compile the model with the optimizer alone"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "scaled losses"),
    ):
        model = network()
        model.compile(optimizer, loss="mse")
        with raises(UsageError, text):
            model.fit(X, Y, verbose=0, callbacks=[hvd.callbacks.VirtualWorkersCallback(COUNT)])
    for loss, labels in (
        (keras.losses.MeanSquaredError(reduction="sum"), Y),
        (keras.losses.MeanSquaredError(reduction=None), Y),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=-1), np.zeros(len(X), np.int32)),
    ):
        model = network()
        model.compile("sgd", loss=loss)
        with raises(UsageError, "a loss is the mean over its rows"):
            model.fit(X, labels, verbose=0, callbacks=[hvd.callbacks.VirtualWorkersCallback(COUNT)])
    if keras.backend.backend() != "jax":
        model = network(0, keras.layers.SpectralNormalization(keras.layers.Dense(3)))
        model.compile("sgd", loss="mse")
        with raises(UsageError, "assigns its weights in each forward pass"):
            model.fit(X, Y, verbose=0, callbacks=[hvd.callbacks.VirtualWorkersCallback(COUNT)])


class Adding(keras.layers.Layer):  # type: ignore[misc]
    """Layer that adds what ``of`` makes of the squares of its rows to the loss."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self._of = of

    def call(self, x: Any) -> Any:
        """See ``Layer``."""
        self.add_loss(0.1 * self._of(keras.ops.square(x)))
        return x


@case
def virtual_workers_refuse_losses_that_add_up_rows() -> None:
    """Of a layer, of a function and of ``compute_loss``; a mean of a layer trains as one worker does."""

    class Own(keras.Model):  # type: ignore[misc]
        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
            return keras.ops.sum(keras.ops.square(y - y_pred))

    inputs = keras.Input((5,))
    own, plain, added = Own(inputs, keras.layers.Dense(2)(inputs)), network(), network(3, Adding(keras.ops.sum))
    for model, loss in (
        (own, "mse"),
        (plain, lambda y, found: keras.ops.sum(keras.ops.square(y - found))),
        (added, "mse"),
    ):
        model.compile(keras.optimizers.SGD(0.01), loss=loss, metrics=["mae"])
        before = variables.read(model.variables)
        with raises(UsageError, "is no mean over rows"):
            model.fit(X, Y, batch_size=GLOBAL_BATCH, verbose=0, callbacks=[hvd.callbacks.VirtualWorkersCallback(COUNT)])
        if keras.backend.backend() != "jax":  # there a fit that fails leaves no variables
            assert all((a == b).all() for a, b in zip(before, variables.read(model.variables), strict=True))
    virtual: list[Any] = [hvd.callbacks.VirtualWorkersCallback(COUNT)]
    ours, alone = (trained(callbacks, Adding(keras.ops.mean)) for callbacks in (virtual, []))
    are_close(ours, alone)


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """Layer that counts its steps of training in a whole number."""

    def build(self, _: Any) -> None:
        """See ``Layer``."""
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def call(self, x: Any, training: bool = False) -> Any:
        """See ``Layer``."""
        if training:
            self.count.assign(self.count + 1)
        return x


@case
def virtual_workers_count_alike_where_a_rank_has_no_rows() -> None:
    """Of a last batch with fewer rows than shards, so that all shards of the last rank are empty."""
    counting = Counting()
    rows = GLOBAL_BATCH + 1
    trained([hvd.callbacks.VirtualWorkersCallback(COUNT)], counting, rows=rows)
    counts = hvd.allgather_object(int(counting.count))
    assert counts == [STEPS] * hvd.size(), counts
