"""Optimizers of Keras 3 that ``horovod.tensorflow`` or ``farandole.tensorflow`` distributes: the module is an argument.

    farandole run --horovod -np 2 python keras_optimizers.py horovod.tensorflow

Training on shares of a batch is training on all of it, in a loop of one's own, as a graph or not, and in ``fit``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import farandole.keras

hvd: Any = importlib.import_module(sys.argv[1])

RANDOM = np.random.default_rng(1)
XS = RANDOM.normal(size=(40, 12, 5)).astype(np.float32)
YS = XS[:, :, :1] * XS[:, :, 1:2]
loss_of = keras.losses.MeanSquaredError()
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda **how: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **how),
    "Adam": lambda **how: keras.optimizers.Adam(0.01, clipnorm=0.5, **how),
    "AdamW": lambda **how: keras.optimizers.AdamW(0.01, weight_decay=0.1, **how),
}


def made() -> Any:
    """A model that begins with the same weights on every rank."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Input((5,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    return keras.Sequential(layers)


def in_a_loop(optimizer: Any, share: slice, eager: bool) -> list[Any]:
    """Weights after one step for each batch."""
    model = made()
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    run = step if eager else tf.function(step)
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    for x, y in zip(XS, YS, strict=True):
        run(tf.constant(x[share]), tf.constant(y[share]))
    return list(model.get_weights())


def in_fit(optimizer: Any, share: slice) -> list[Any]:
    """Weights after the same steps, by ``model.fit``."""
    model = made()
    model.compile(optimizer, loss=loss_of)
    x, y = (np.concatenate([batch[share] for batch in each]) for each in (XS, YS))
    model.fit(x, y, batch_size=len(x) // len(XS), epochs=1, shuffle=False, verbose=0)
    return list(model.get_weights())


def require_same(found: list[Any], expected: list[Any], what: str) -> None:
    """Fail unless these weights are as expected, and those of all ranks have the same bits."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5, err_msg=what)
    for others in hvd.allgather_object(found):
        assert all(np.array_equal(one, other) for one, other in zip(found, others, strict=True)), what


def all_train_alike() -> None:
    share, everything = slice(hvd.rank(), None, hvd.size()), slice(None)
    for name, make in OPTIMIZERS.items():
        alone = in_a_loop(make(), everything, eager=False)
        for eager in (False, True):
            optimizer = hvd.DistributedOptimizer(make(), name=name)
            assert type(optimizer).__name__ == name
            require_same(in_a_loop(optimizer, share, eager), alone, f"{name}, eager: {eager}")
        require_same(in_fit(hvd.DistributedOptimizer(make()), share), alone, f"{name} in fit")


def arguments_are_those_of_the_reduction() -> None:
    share, everything = slice(hvd.rank(), None, hvd.size()), slice(None)
    make = OPTIMIZERS["SGD"]
    alone = in_a_loop(make(), everything, eager=False)
    predivided = hvd.DistributedOptimizer(make(), gradient_predivide_factor=2.0, num_groups=2)
    require_same(in_a_loop(predivided, share, eager=False), alone, "gradient_predivide_factor")
    half = hvd.DistributedOptimizer(make(), compression=hvd.Compression.fp16)
    for found, exact in zip(in_a_loop(half, share, eager=False), alone, strict=True):
        np.testing.assert_allclose(found, exact, atol=0.01)
        assert not np.array_equal(found, exact), "fp16 loses some digits"
    summed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 / hvd.size(), momentum=0.9, nesterov=True), op=hvd.Sum)
    require_same(in_a_loop(summed, share, eager=False), alone, "op=Sum")
    accumulated = in_a_loop(make(gradient_accumulation_steps=4), everything, eager=False)
    passes = {"backward_passes_per_step": 4, "average_aggregated_gradients": True}
    require_same(in_a_loop(hvd.DistributedOptimizer(make(), **passes), share, False), accumulated, "passes in a loop")
    require_same(in_fit(hvd.DistributedOptimizer(make(), **passes), share), accumulated, "passes in fit")


def a_process_set_may_leave_ranks_out() -> None:
    """Those step with their own gradients."""
    only = hvd.add_process_set([0])
    share = slice(hvd.rank(), None, hvd.size())
    found = in_a_loop(hvd.DistributedOptimizer(OPTIMIZERS["SGD"](), process_set=only), share, eager=False)
    for one, other in zip(found, in_a_loop(OPTIMIZERS["SGD"](), share, eager=False), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)
    first = hvd.allgather_object(found)
    assert not np.array_equal(first[0][0], first[-1][0]), "their batches differ, and nothing was averaged"


def refusals_say_what_to_do() -> None:
    for arguments, text in (
        ({"op": hvd.Adasum}, "DistributedGradientTape(op=Adasum)"),
        ({"backward_passes_per_step": 0}, "it starts from 1"),
        ({"op": hvd.Max}, "Max"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **arguments)


def a_function_divides_by_the_ranks_that_there_are_when_it_runs() -> None:
    """Slices of embeddings, and gradients of local layers; the last case, as rank 0 is alone afterwards."""
    x, size, rank = tf.constant([[0, 1]]), hvd.size(), hvd.rank()

    def rows_of(is_local: bool) -> Callable[[], Any]:
        layers = [keras.layers.Input((2,), dtype="int32"), keras.layers.Embedding(5, 1)]
        model = keras.Sequential([*layers, keras.layers.Dense(1, use_bias=False)])
        layers_of_ranks = [model.layers[0]] if is_local else []
        optimizer = farandole.keras.DistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layers_of_ranks)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        def rows() -> Any:
            model.set_weights([np.full((5, 1), 2.0), np.ones((1, 1))])
            step()
            return model.get_weights()[0].ravel()

        return rows

    shared, local = rows_of(is_local=False), rows_of(is_local=True)
    np.testing.assert_allclose(shared(), [1, 1, 2, 2, 2])
    np.testing.assert_allclose(local(), [2 - 1 / size, 2 - 1 / size, 2, 2, 2])
    hvd.shutdown()
    if rank == 0:
        hvd.init([0])
        np.testing.assert_allclose(shared(), [1, 1, 2, 2, 2])
        np.testing.assert_allclose(local(), [1, 1, 2, 2, 2])


CASES = [
    all_train_alike,
    arguments_are_those_of_the_reduction,
    a_process_set_may_leave_ranks_out,
    refusals_say_what_to_do,
    a_function_divides_by_the_ranks_that_there_are_when_it_runs,
]


def main() -> None:
    """One rank."""
    hvd.init()
    rank = hvd.rank()
    for each in CASES:
        each()
        if rank == 0:
            print(each.__name__, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
