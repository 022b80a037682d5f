"""Cases of layers that keep something beside their variables, or compute with constants that they make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.keras import variables
from farandole.runtime.collectives.objects import allgather_object
from tests.support.keras.cases import BACKEND, OPTIMIZERS, Array, X, case, fit

PROBE = X[:4]


def rows(rank: int) -> Array:
    """What a rank adapts its layers to: no two ranks see alike."""
    return X * (1 + rank) + 3 * rank


def adapt(layer: Any, to: Array) -> None:
    """``layer.adapt``, which needs TensorFlow for ``Discretization``, on any backend."""
    if isinstance(layer, keras.layers.Discretization):
        layer.reset_state()
        layer.update_state(to)
        layer.finalize_state()
    else:
        layer.adapt(to)


def normalized(x: Array, by: Array) -> Array:
    """As NumPy computes it."""
    found: Array = (x - by.mean(axis=0)) / by.std(axis=0)
    return found


class Seen(keras.layers.Layer):  # type: ignore[misc]
    """Passes values on; what is seen here is what the layer before computes in the model's own programs."""

    def call(self, x: Any) -> Any:
        return x


def seen(model: Any) -> Array:
    """What ``Seen`` sees of ``PROBE``, by a compiled program of the model's."""
    parts = keras.Model(model.inputs, model.get_layer("seen").output)
    found: Array = parts.predict(PROBE, verbose=0)
    return found


def made(*layers: Any, seed: int = 1) -> Any:
    """A model that computes with ``layers`` first."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((5,)), *layers, Seen(name="seen"), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse")
    return model


@case
def ranks_compute_with_the_statistics_of_one_after_a_broadcast() -> None:
    root = hvd.size() - 1
    for policy in ("float32", "mixed_float16"):
        for callback in (True, False):
            layer = keras.layers.Normalization(dtype=policy)
            layer.adapt(rows(hvd.rank()))
            model = made(layer)
            if callback:
                fit(model, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
            else:
                hvd.broadcast_variables(model.variables, root)
            expected = normalized(PROBE, rows(root))
            np.testing.assert_allclose(seen(model), expected, rtol=1e-2 if policy != "float32" else 1e-4, atol=1e-2)
            predicted = allgather_object(model.predict(PROBE, verbose=0))
            np.testing.assert_array_equal(predicted[0], predicted[-1])


@case
def a_step_that_was_traced_with_other_statistics_is_traced_anew() -> None:
    trained = []
    for is_traced_before in (False, True):
        layer = keras.layers.Normalization()
        model = made(layer)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
        begin = model.layers[-1].get_weights()
        if is_traced_before:
            fit(model, epochs=1)
            model.layers[-1].set_weights(begin)
        layer.adapt(rows(hvd.rank()))
        fit(model, epochs=1)
        trained.append(model.layers[-1].get_weights())
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@case
def boundaries_of_bins_are_those_of_one_rank() -> None:
    root = hvd.size() - 1
    layer = keras.layers.Discretization(num_bins=4)
    adapt(layer, rows(hvd.rank())[:, :1])
    own = allgather_object(list(layer.bin_boundaries))
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), layer, keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse")
    assert own[0] != own[-1] or hvd.size() == 1
    fit(model, X[:, :1], callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root)])
    assert list(layer.bin_boundaries) == own[root]


@case
def vocabularies_are_those_of_one_rank() -> None:
    """Keras makes lookups with TensorFlow, whatever the backend; with another one they are in no compiled step."""
    if BACKEND != "tensorflow":
        return
    words = np.array([["red"], ["green"], ["blue"]])
    mine = [f"of rank {hvd.rank()}", "red"]
    learned = keras.layers.TextVectorization(output_mode="tf_idf", pad_to_max_tokens=True, max_tokens=9)
    learned.adapt([*mine, "red green"])
    layers = [
        keras.layers.StringLookup(vocabulary=mine, output_mode="one_hot"),
        keras.layers.IntegerLookup(),
        learned,
    ]
    layers[1].adapt(np.arange(3) + hvd.rank())
    inputs = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
    model = keras.Model(inputs, [layers[0](inputs[0]), layers[1](inputs[1]), layers[2](inputs[0])])
    before = [[list(map(str, layer.get_vocabulary())) for layer in layers], np.array(learned(words))]
    root = allgather_object(before)[0]
    variables.broadcast_tables(model, 0)
    assert [list(map(str, layer.get_vocabulary())) for layer in layers] == root[0]
    np.testing.assert_allclose(np.array(learned(words)), root[1])


@case
def a_checkpoint_has_what_layers_keep_beside_variables() -> None:
    """The script that goes on has adapted one layer to other rows, and the other one not at all."""
    folder = Path("adapted")
    models: list[Any] = []
    for rank, seed in (0, 1), (5, 7):
        layers = [keras.layers.Normalization(), keras.layers.Discretization(num_bins=4)]
        adapt(layers[1], rows(rank))
        if not models:
            adapt(layers[0], rows(rank))
        models.append(made(*layers, seed=seed))
        history = fit(models[-1], epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
        assert history.epoch == ([0] if len(models) == 1 else [])
    first, second = models
    np.testing.assert_array_equal(seen(first), seen(second))
    np.testing.assert_array_equal(first.predict(X, verbose=0), second.predict(X, verbose=0))


@case
def a_state_has_what_layers_keep_beside_variables() -> None:
    layers = [keras.layers.Normalization(), keras.layers.Discretization(num_bins=4)]
    for layer in layers:
        adapt(layer, rows(hvd.rank()))
    model = made(*layers)
    state = hvd.elastic.KerasState(model)
    state.sync()
    expected = allgather_object(seen(model))
    np.testing.assert_array_equal(expected[0], expected[-1])
    state.commit()
    for layer in layers:
        adapt(layer, X * 9)
    assert not np.array_equal(seen(model), expected[0])
    state.restore()
    np.testing.assert_array_equal(seen(model), expected[0])


@case
def buffers_of_modules_of_pytorch_go_along() -> None:
    if BACKEND != "torch":
        return
    import torch

    module: Any = torch.nn.BatchNorm1d(5)
    model = made(keras.layers.TorchModuleWrapper(module))
    folder = Path("buffers")
    module.running_mean.fill_(hvd.rank())
    variables.broadcast_tables(model, hvd.size() - 1)
    assert module.running_mean.tolist() == [hvd.size() - 1] * 5
    fit(model, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    kept = allgather_object(module.running_mean.tolist())[0]
    again: Any = torch.nn.BatchNorm1d(5)
    second = made(keras.layers.TorchModuleWrapper(again))
    fit(second, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    assert again.running_mean.tolist() == kept


@case
def a_step_that_was_traced_between_two_hand_overs_of_one_table_is_traced_anew() -> None:
    """Each time, the root hands over what it had handed over before, and the others had traced something else."""
    layer = keras.layers.Normalization()
    broadcast = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    models = [made(layer) for _ in range(2)]  # they share it
    for _ in range(2):
        layer.adapt(rows(hvd.rank()))
        for model in models:
            model.predict(PROBE, verbose=0)
        for model in models:
            fit(model, epochs=1, callbacks=broadcast)
        for model in models:
            predicted = allgather_object(model.predict(PROBE, verbose=0))
            np.testing.assert_array_equal(predicted[0], predicted[-1])
            own = model.layers[-1].get_weights()
            expected = normalized(PROBE, rows(0)) @ own[0] + own[1]
            np.testing.assert_allclose(predicted[0], expected, rtol=1e-3, atol=1e-4)
