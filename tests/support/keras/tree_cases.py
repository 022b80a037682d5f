"""Cases of optimizers that hold optimizers, of steps made of several batches, and of metrics that are arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.errors import UsageError
from farandole.keras import variables
from farandole.largebatch.recipe import recipe
from farandole.runtime.collectives.objects import allgather_object
from tests.support.keras.cases import GLOBAL_BATCH, OPTIMIZERS, ROWS, case, compiled, fit, network, trains_as_one, value
from tests.support.raising import raises

K: Any = keras.optimizers
HAS_SEVERAL = hasattr(K, "MultiOptimizer")  # since Keras 3.13


def several(**how: Any) -> Any:
    """An optimizer that gives kernels and biases to one each."""
    return K.MultiOptimizer(K.OptimizerMap(K.SGD(0.05, momentum=0.9, **how), {".*bias": K.Adam(0.01, **how)}))


@case
def a_step_of_several_optimizers_is_made_of_all_passes() -> None:
    """Two passes with a gradient of 1 and a rate of 1."""
    kinds: list[Callable[[], Any]] = [lambda: K.SGD(1.0), lambda: K.MultiOptimizer(K.OptimizerMap(K.SGD(1.0)))]
    for kind in kinds if HAS_SEVERAL else kinds[:1]:
        for averages, expected in (False, [0.0, -2.0]), (True, [0.0, -1.0]):
            variable = keras.Variable(np.zeros(1, np.float32))
            optimizer = hvd.DistributedOptimizer(
                kind(), backward_passes_per_step=2, average_aggregated_gradients=averages
            )
            seen = []
            for _ in range(2):
                optimizer.apply([keras.ops.ones(1)], [variable])
                seen.append(float(value(variable)[0]))
            assert seen == expected, (type(optimizer), averages, seen)


@case
def several_optimizers_train_as_one_worker_does() -> None:
    if HAS_SEVERAL:
        trains_as_one(several, hvd.DistributedOptimizer)
        trains_as_one(lambda: several(gradient_accumulation_steps=2), hvd.DistributedOptimizer)


@case
def questions_about_an_optimizer_are_asked_of_those_that_it_holds() -> None:
    if not HAS_SEVERAL:
        return
    model = network()
    local = model.layers[0]
    model.compile(hvd.DistributedOptimizer(several(), local_layers=[local]), loss="mse")
    model.optimizer.build(model.trainable_variables)
    own = {id(each) for each in variables.local_of(model)}
    assert {id(v) for v in local.variables} < own
    assert len(own) > len(local.variables)  # momenta of the kernel, and both of the bias
    assert variables.methods_of(model) == ["Adam", "SGD"]
    with raises(UsageError, "accumulates 2"):
        fit(compiled(several(gradient_accumulation_steps=2)), callbacks=[hvd.callbacks.NoiseScaleCallback(6)])
    with raises(UsageError, "global_clipnorm with local_layers"):
        hvd.DistributedOptimizer(several(global_clipnorm=1.0), local_layers=[local])
    with raises(UsageError, "chooses its optimizers by a function"):
        hvd.DistributedOptimizer(K.MultiOptimizer(lambda _: K.SGD(0.1)), backward_passes_per_step=2)
    file = Path(f"several-{hvd.rank()}.keras")
    plain = network()
    plain.compile(several(gradient_accumulation_steps=2), loss="mse")
    plain.save(file)
    with raises(UsageError, "accumulates 2 batches"):
        hvd.load_model(file)


@case
def names_that_horovods_scripts_use() -> None:
    model = network(1 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(K.SGD(0.05))
    local = model.layers[0].bias
    optimizer.register_local_var(local)
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.register_local_var(local)
    local.assign(np.full(8, 1.0 + hvd.rank(), np.float32))
    model.compile(optimizer, loss="mse")
    best = hvd.callbacks.BestModelCheckpoint("loss", 0, True)
    fit(model, epochs=1, callbacks=[broadcast, best])
    each = allgather_object([value(v) for v in model.trainable_variables])
    for i, variable in enumerate(model.trainable_variables):
        assert np.array_equal(each[0][i], each[-1][i]) == (variable is not local or hvd.size() == 1)
    hvd.barrier()
    assert Path("best.weights.h5").exists()
    with raises(UsageError, "global_clipnorm with local_layers"):
        hvd.DistributedOptimizer(K.SGD(0.05, global_clipnorm=1.0)).register_local_var(local)
    file = Path(f"compressed-{hvd.rank()}.keras")
    model.save(file)
    loaded = hvd.load_model(file, None, None, hvd.Compression.fp16)
    assert loaded.optimizer._farandole._asked.compression is hvd.Compression.fp16


@case
def a_rate_that_nobody_can_set_is_refused_by_name() -> None:
    made = [K.SGD(K.schedules.ExponentialDecay(0.1, 4, 0.7)), *([several()] if HAS_SEVERAL else [])]
    for optimizer in made:
        with raises(UsageError, "a callback sets the learning rate"):
            fit(compiled(optimizer), callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.1, 1)])


@case
def samples_are_counted_once_where_batches_are_accumulated() -> None:
    for passes in (1, 2, 4):
        steps = passes * GLOBAL_BATCH
        schedule = recipe(optimizer="sgd", base_lr=0.1, base_batch=12, global_batch=steps, epochs=4).schedule
        for by_keras in (False, True) if passes > 1 else (False,):
            plain = K.SGD(0.05, gradient_accumulation_steps=passes if by_keras else None)
            model = network()
            optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=1 if by_keras else passes)
            model.compile(optimizer, loss="mse")
            counts = hvd.callbacks.SamplesScheduleCallback(schedule, epoch_samples=ROWS)
            fit(model, epochs=1, callbacks=[counts])
            assert counts.position.samples == ROWS, (passes, by_keras)
    odd = recipe(optimizer="sgd", base_lr=0.1, base_batch=12, global_batch=13, epochs=4).schedule
    with raises(UsageError, "steps of 13 samples and an optimizer that accumulates 2"):
        fit(
            compiled(K.SGD(0.05, gradient_accumulation_steps=2)),
            callbacks=[hvd.callbacks.SamplesScheduleCallback(odd, ROWS)],
        )


@case
def metrics_that_are_arrays_are_averaged_too() -> None:
    callback = hvd.callbacks.MetricAverageCallback()
    own = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32) * (1 + hvd.rank())
    logs: dict[str, Any] = {"loss": float(hvd.rank()), "matrix": own}
    callback.on_epoch_end(0, logs)
    each = allgather_object(own)
    np.testing.assert_allclose(logs["matrix"], sum(each) / len(each))
    assert logs["loss"] == (hvd.size() - 1) / 2
    model = network()
    model.compile(
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse", metrics=[keras.metrics.F1Score(threshold=0.5)]
    )
    history = fit(model, np.abs(np.sin(np.arange(ROWS * 5).reshape(ROWS, 5))), np.eye(2)[np.arange(ROWS) % 2],
                  callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), callback])  # fmt: skip
    seen = allgather_object(np.array(history.history["f1_score"]))
    assert seen[0].shape == (2, 2)
    for other in seen:
        np.testing.assert_array_equal(seen[0], other)
    if hvd.size() > 1:
        with raises(UsageError, "other metrics than others: rank 0 has matrix[1] and rank 1 has matrix[2]"):
            callback.on_epoch_end(0, {"matrix": np.zeros(1 + min(hvd.rank(), 1))})
