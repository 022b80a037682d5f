"""Cases of callbacks for Keras, and of what goes with them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
import farandole.numpy as numpy_hvd
from farandole import events
from farandole.errors import UsageError
from farandole.keras.model_progress import COUNTS_BATCHES
from farandole.largebatch.noise import Estimate
from farandole.largebatch.recipe import recipe
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.session.training import training
from tests.support.keras.cases import (
    BACKEND,
    GLOBAL_BATCH,
    OPTIMIZERS,
    ROWS,
    STEPS,
    Rates,
    X,
    Y,
    are_close,
    are_same_everywhere,
    case,
    compiled,
    fit,
    mine,
    network,
    stopping,
    value,
)
from tests.support.raising import raises


def rates_of(model: Any, callback: Any, epochs: int = 4) -> Any:
    """The rates that a callback sets."""
    rates = Rates()
    fit(model, epochs=epochs, callbacks=[callback, rates])
    return rates.seen


@case
def a_broadcast_gives_all_ranks_the_model_and_the_optimizer_of_one() -> None:
    root = hvd.size() - 1
    model = network(1 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), loss="mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.variables[2].assign(value(model.optimizer.variables[2]) + hvd.rank())
    kept = model.layers[1].bias
    kept.assign(np.full(2, hvd.rank(), np.float32))
    expected = allgather_object([value(v) for v in (model.layers[0].kernel, model.optimizer.variables[2])])[root]
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root, "", [kept])
    callback.set_model(model)
    callback.on_train_begin()
    found = [value(v) for v in (model.layers[0].kernel, model.optimizer.variables[2])]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert value(kept).tolist() == [hvd.rank()] * 2
    with raises(ValueError, "BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)
    hvd.broadcast_variables(model.variables, root_rank=0)
    assert value(kept).tolist() == [0, 0]


@case
def a_model_that_is_built_by_its_first_step_is_broadcast_before() -> None:
    """On TensorFlow ``fit`` builds none by itself, but with its first step."""
    for callback in (hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.CheckpointCallback("unbuilt")):
        keras.utils.set_random_seed(1 + hvd.rank())
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse", metrics=["mae"])
        history = fit(model, epochs=1, callbacks=[callback, counter := Rates()])
        are_same_everywhere(model)
        assert len(counter.seen) == STEPS  # no batch is lost
        assert np.isfinite(history.history["mae"]).all()
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    alone = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    alone.set_model(unbuilt)
    with raises(UsageError, "is not built"):
        alone.on_train_begin()


class Pair(keras.Model):  # type: ignore[misc]
    """Two networks that a ``train_step`` of one's own trains against each other; it is never called, nor built."""

    def __init__(self, one: Any, other: Any) -> None:
        super().__init__()
        self.one, self.other = one, other


@case
def a_model_that_is_never_called_is_broadcast_if_what_it_holds_is_built() -> None:
    pair = Pair(network(1 + hvd.rank()), network(9 + hvd.rank()))
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.set_model(pair)
    broadcast.on_train_begin()
    are_same_everywhere(pair)
    broadcast.set_model(Pair(network(), keras.Sequential([keras.layers.Dense(1)])))
    with raises(UsageError, "is not built"):
        broadcast.on_train_begin()


@case
def metrics_are_those_of_all_ranks() -> None:
    logs = {"loss": float(hvd.rank()), "b": np.float32(2 * hvd.rank()), "a": 1.0, "list": [1]}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    mean = (hvd.size() - 1) / 2
    assert logs == {"loss": mean, "b": 2 * mean, "a": 1.0, "list": [1]}
    heard: list[events.Event] = []
    stepped, training.step = training.step, 0  # as where the optimizer is not distributed
    logs_before, cancel = training.logs, events.listen(heard.append)
    for epoch in range(2):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(epoch, {"loss": 0.5})
    cancel()
    training.step = stepped
    steps = [each.step - logs_before for each in heard if isinstance(each, events.Metric)]
    assert steps == ([1, 2] if hvd.rank() == 0 else []), steps
    model = compiled(OPTIMIZERS["sgd"]())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = fit(model, callbacks=callbacks, validation_data=(mine(X), mine(Y))).history
    assert all(each == history for each in allgather_object(history))


@case
def ranks_with_other_metrics_than_others_are_told() -> None:
    """At once, as where rank 0 alone has data to validate with."""
    if hvd.size() == 1:
        return
    own: Any = {"validation_data": (mine(X), mine(Y))} if hvd.rank() == 0 else {}
    with raises(UsageError, "rank 0 has loss, val_loss and rank 1 has loss"):
        fit(compiled(OPTIMIZERS["sgd"]()), callbacks=[hvd.callbacks.MetricAverageCallback()], **own)


@case
def sets_that_are_not_registered_and_ranks_without_variables_are_told() -> None:
    unknown = hvd.ProcessSet([0])
    with raises(UsageError, "is not registered in this job"):
        hvd.callbacks.MetricAverageCallback(process_set=unknown).on_epoch_end(0, {"loss": 1.0})
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), process_set=unknown), loss="mse")
    with raises(UsageError, "is not registered in this job"):
        fit(model, epochs=1, callbacks=[])
    if hvd.size() > 1:
        with raises(hvd.HorovodInternalError, "broadcast"):
            hvd.broadcast_variables(network().variables if hvd.rank() else [], root_rank=0)
    hvd.broadcast_variables([], root_rank=0)


@case
def a_schedule_sets_the_rate_by_epochs_or_batches() -> None:
    steps = hvd.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3)
    seen = rates_of(compiled(keras.optimizers.SGD(0.01)), steps)
    np.testing.assert_allclose(seen, np.repeat([0.01, 0.04, 0.02, 0.02], STEPS), rtol=1e-6)
    constant = hvd.callbacks.LearningRateScheduleCallback(0.08, 0.25, staircase=False)
    np.testing.assert_allclose(rates_of(compiled(keras.optimizers.SGD(0.01)), constant, 1), [0.02] * STEPS, rtol=1e-6)
    smooth = hvd.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 1 / (1 + epoch), staircase=False)
    seen = rates_of(compiled(keras.optimizers.SGD(0.01)), smooth, 2)
    np.testing.assert_allclose(seen, [0.08 / (1 + i / STEPS) for i in range(2 * STEPS)], rtol=1e-6)
    model = compiled(keras.optimizers.SGD(0.01))
    history = fit(model, callbacks=[hvd.callbacks.LearningRateScheduleCallback(0.08, 0.5)]).history
    np.testing.assert_allclose(history["lr"], [0.04, 0.04], rtol=1e-6)
    with raises(ValueError, "initial_lr"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)  # type: ignore[arg-type]


@case
def a_warm_up_rises_to_the_rate_of_all_ranks() -> None:
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, verbose=1)
    seen = rates_of(compiled(keras.optimizers.SGD(0.5)), warmup, 3)
    size, risen = hvd.size(), [(i + 1) / STEPS for i in range(2 * STEPS)]
    expected = [0.08 / size * (epoch * (size - 1) / 2 + 1) for epoch in risen] + [0.08] * STEPS
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


@case
def an_elastic_fit_that_counts_from_0_goes_on_with_the_rates_of_its_epoch() -> None:
    """As after a change of the workers, in scripts that call ``fit(epochs=3 - state.epoch)``."""
    smooth = hvd.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 1 / (1 + epoch), staircase=False)
    steps = hvd.callbacks.LearningRateScheduleCallback(0.08, lambda epoch: 0.5**epoch)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=4)
    for callback in (smooth, steps, warmup):
        whole = rates_of(compiled(keras.optimizers.SGD(0.5)), callback, 3)
        model = compiled(keras.optimizers.SGD(0.5))
        state: Any = hvd.elastic.KerasState(model, epoch=1)
        rates = Rates()
        fit(model, epochs=2, callbacks=[callback, rates, hvd.elastic.UpdateEpochStateCallback(state)])
        np.testing.assert_allclose(rates.seen, whole[STEPS:], rtol=1e-6)
        assert state.epoch == 3


@case
def momentum_is_corrected_where_the_rate_changes() -> None:
    """Goyal et al. 2017, equation 10: v = m (new rate / old rate) v + new rate * g; that of Keras is negative."""
    x, y = X[:GLOBAL_BATCH], Y[:GLOBAL_BATCH]
    for corrects in (True, False):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, use_bias=False)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.9)), loss="mse")
        weight = model.get_weights()[0].astype(np.float64)
        rates, before, velocity = [0.02, 0.02, 0.06, 0.03], 0.5, np.zeros_like(weight)
        for rate in rates:
            gradient = 2 * x.T.astype(np.float64) @ (x @ weight - y) / y.size
            velocity = 0.9 * (rate / before if corrects else 1.0) * velocity - rate * gradient
            weight, before = weight + velocity, rate
        schedule = hvd.callbacks.LearningRateScheduleCallback(
            1.0, dict(zip([0.0, 1.0, 2.0, 3.0], rates, strict=True)).__getitem__, momentum_correction=corrects
        )
        fit(model, x, y, epochs=4, callbacks=[schedule])
        np.testing.assert_allclose(model.get_weights()[0], weight, rtol=1e-4, atol=1e-6)


@case
def rates_follow_the_samples_of_a_recipe() -> None:
    found = recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=GLOBAL_BATCH, epochs=2)
    rates = Rates()
    callback = hvd.callbacks.SamplesScheduleCallback(found.schedule, epoch_samples=ROWS)
    model = compiled(keras.optimizers.SGD(0.5))
    fit(model, callbacks=[callback, rates])
    position, expected = found.schedule.begin(ROWS), []
    for _ in range(2 * STEPS):
        expected.append(found.schedule.rate(position))
        position = found.schedule.advance(position, GLOBAL_BATCH, 1.0)
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)


@case
def rates_by_samples_of_calls_that_keras_does_not_tell_of_are_refused() -> None:
    if BACKEND == "torch" or COUNTS_BATCHES:
        return
    found = recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=GLOBAL_BATCH, epochs=4)
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), loss="mse", steps_per_execution=3)
    with raises(UsageError, "which does not tell how many batches a call has had"):
        fit(model, callbacks=[hvd.callbacks.SamplesScheduleCallback(found.schedule, epoch_samples=ROWS)])


@case
def rates_by_samples_go_on_with_the_model() -> None:
    """Whether a ``fit`` begins with a later epoch, a state goes back, or several steps are one call."""
    found = recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=GLOBAL_BATCH, epochs=4, warmup_epochs=2)
    expected, position = [], found.schedule.begin(ROWS)
    for _ in range(4 * STEPS):
        expected.append(found.schedule.rate(position))
        position = found.schedule.advance(position)

    def rates(model: Any, state: Any = None, stop: int = -1, every: int = 2, **how: Any) -> list[float]:
        seen = Rates()
        callbacks = [hvd.callbacks.SamplesScheduleCallback(found.schedule, ROWS, GLOBAL_BATCH), seen, *stopping(stop)]
        if state is not None:
            callbacks.insert(2, hvd.elastic.CommitStateCallback(state, batches_per_commit=every))
        with contextlib.suppress(InterruptedError):
            fit(model, callbacks=callbacks, **how)
        return seen.seen

    resumed = rates(compiled(keras.optimizers.SGD(0.5)), initial_epoch=2, epochs=3)
    np.testing.assert_allclose(resumed, expected[2 * STEPS : 3 * STEPS], rtol=1e-6)
    model = compiled(keras.optimizers.SGD(0.5))
    state = hvd.elastic.KerasState(model)
    state.commit()
    np.testing.assert_allclose(rates(model, state, 2, epochs=1), expected[:3], rtol=1e-6)
    state.restore()  # to the commit after two batches
    np.testing.assert_allclose(rates(model, state, epochs=1), expected[2 : STEPS + 2], rtol=1e-6)
    model = compiled(keras.optimizers.SGD(0.5, gradient_accumulation_steps=2))
    state = hvd.elastic.KerasState(model)
    np.testing.assert_allclose(rates(model, state, 3, 3, epochs=1), expected[:4], rtol=1e-6)
    state.restore()  # to the commit in the middle of an accumulation
    np.testing.assert_allclose(rates(model, state, epochs=1), expected[3 : STEPS + 3], rtol=1e-6)
    if BACKEND == "torch":  # it has no such calls
        return
    several, calls = network(), [*range(0, STEPS, 3), *range(STEPS, 2 * STEPS, 3)]  # the last of an epoch are of two
    several.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), loss="mse", steps_per_execution=3)
    if not COUNTS_BATCHES:
        return
    np.testing.assert_allclose(rates(several, epochs=2), np.array(expected)[calls], rtol=1e-6)
    scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)))
    several.compile(scaled, loss="mse", steps_per_execution=3)
    with raises(UsageError, "scaled losses and steps_per_execution=3"):
        rates(several)


@case
def rates_by_samples_turn_where_only_the_global_batch_is_another() -> None:
    """With more workers and with fewer, by a checkpoint and in an elastic job; expected is what a resize makes."""
    for before, after in ((12, 24), (24, 12)):
        old, new = (recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=batch, epochs=4).schedule
                    for batch in (before, after))  # fmt: skip
        position, expected = old.begin(ROWS), list[float]()
        for _ in range(STEPS):
            position = old.advance(position)
        position = new.resize(position, after)
        for _ in range(STEPS):
            expected.append(new.rate(position))
            position = new.advance(position)
        first, second = (partial(hvd.callbacks.SamplesScheduleCallback, each, ROWS) for each in (old, new))
        rates, keeps = Rates(), hvd.callbacks.CheckpointCallback(Path(f"resized-from-{before}"))
        fit(compiled(keras.optimizers.SGD(0.5)), epochs=1, callbacks=[first(), keeps])
        fit(compiled(keras.optimizers.SGD(0.5), 2), epochs=2, callbacks=[keeps, second(), rates])
        np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)
        model, rates = compiled(keras.optimizers.SGD(0.5)), Rates()
        state: Any = hvd.elastic.KerasState(model)
        fit(model, epochs=1, callbacks=[first(), hvd.elastic.CommitStateCallback(state)])
        fit(model, epochs=1, callbacks=[second(), rates])
        np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)


@case
def rates_by_samples_go_on_where_epochs_get_more_samples() -> None:
    """As many passes have been made over the larger set."""
    schedule = recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=GLOBAL_BATCH, epochs=4).schedule
    model, rates, position = compiled(keras.optimizers.SGD(0.5)), Rates(), schedule.begin(ROWS)
    state: Any = hvd.elastic.KerasState(model)
    callbacks = [hvd.callbacks.SamplesScheduleCallback(schedule, ROWS), hvd.elastic.CommitStateCallback(state)]
    fit(model, epochs=1, callbacks=callbacks)
    for _ in range(STEPS):
        position = schedule.advance(position)
    position, expected = replace(position, epoch_samples=3 * ROWS, samples=3 * ROWS, progress=3.0 * ROWS), list[float]()
    for _ in range(STEPS):
        expected.append(schedule.rate(position))
        position = schedule.advance(position)
    grown = hvd.callbacks.SamplesScheduleCallback(schedule, 3 * ROWS)
    fit(model, epochs=1, callbacks=[grown, rates])
    np.testing.assert_allclose(rates.seen, expected, rtol=1e-6)
    assert (grown.position.epoch, grown.position.steps) == (position.epoch, 2 * STEPS)


@case
def the_best_model_is_kept_by_one_rank() -> None:
    path = Path(broadcast_object(str(Path.cwd()), 0), f"rank{hvd.rank()}.keras")
    model = compiled(OPTIMIZERS["sgd"]())
    fit(model, callbacks=[hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=path)])
    assert path.exists() == (hvd.rank() == 0)
    if hvd.rank() == 0:
        are_close(model, hvd.load_model(path))


@case
def one_rank_speaks() -> None:
    assert hvd.verbose(2) == (2 if hvd.rank() == 0 else 0)


@case
def collectives_take_values() -> None:
    """In the order that ``horovod.keras`` has: value, name, average, factors, op."""
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(size))
    own = keras.ops.ones(3) * rank
    for found, expected in (
        (hvd.allreduce(own), total / size),
        (hvd.allreduce(value=own, name="m"), total / size),
        (hvd.allreduce(own, "x", False), total),
        (hvd.allreduce(own, "y", None, 10.0), 10 * total / size),
        (hvd.allreduce(own, "z", None, 1.0, 2.0, hvd.Sum), 2 * total),
        (hvd.allreduce([float(rank)] * 3), total / size),
        (hvd.allreduce(keras.Variable(own), "v", op=hvd.Sum, compression=hvd.Compression.fp16), total),
        (hvd.broadcast([float(rank + 7)] * 3, 0, "b"), 7),
    ):
        np.testing.assert_allclose(value(found), [expected] * 3)
    assert value(hvd.allgather([rank], "g")).tolist() == list(range(size))
    assert value(hvd.reducescatter(np.ones(size), "r", hvd.Sum)).tolist() == [size]
    with raises(UsageError, "average='x': it is True or False"):
        hvd.allreduce(own, average="x")  # type: ignore[arg-type]
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


class _Means(keras.layers.Layer):  # type: ignore[misc]
    """Product with weights, which are zeros: the gradient of its mean is that of the inputs, whatever they are."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(shape[-1], 1), initializer="zeros", name="w")

    def call(self, x: Any) -> Any:
        return x @ self.w


@case
def the_noise_scale_is_that_of_numpy_on_the_same_gradients() -> None:
    """Also with a smaller last batch, another ``fit``, and after the model was compiled again."""
    rows = np.random.default_rng(5 + hvd.rank()).normal(1.0, 2.0, (28, 40)).astype(np.float32)
    model = keras.Sequential([keras.Input((40,)), _Means()])
    noise = hvd.callbacks.NoiseScaleCallback(lambda batch: len(rows[8 * batch :][:8]), every=1, horizon_samples=1e12)
    for epochs in (2, 1):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(optimizer, loss=lambda _, found: found[:, 0])
        for _ in range(2):
            model.fit(rows, rows, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=[noise])
    known: Any = None
    for epochs in (4, 2):
        average = numpy_hvd.DistributedGradients({"w": np.zeros(40, np.float32)})
        expected = numpy_hvd.NoiseScale(average, every=1, horizon_samples=1e12)
        if known is not None:
            expected.load_state_dict(known)
        for begin in [0, 8, 16, 24] * epochs:
            expected.saw(len(rows[begin : begin + 8]))
            average({"w": rows[begin : begin + 8].mean(0)})
        known = expected.state_dict()
    found, wanted = noise.estimate(), expected.estimate()
    if hvd.size() == 1:
        assert "one rank alone has nothing to compare with" in str(found)
        return
    assert isinstance(found, Estimate)
    assert isinstance(wanted, Estimate)
    np.testing.assert_allclose(
        [found.trace, found.norm2, found.b_simple], [wanted.trace, wanted.norm2, wanted.b_simple], 1e-4
    )
    assert model.history.history["noise_scale"][-1] == found.b_simple
    assert allgather_object(found.b_simple) == [found.b_simple] * hvd.size()


@case
def a_noise_scale_needs_a_distributed_optimizer() -> None:
    """And one that neither scales losses nor accumulates."""
    for optimizer, text in (
        (keras.optimizers.SGD(0.1), "compile the model with hvd.DistributedOptimizer"),
        (hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))), "scaled losses"),
        (hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2), "accumulates 2 batches"),
    ):
        model = network()
        model.compile(optimizer, loss="mse")
        with raises(UsageError, text):
            model.fit(X, Y, verbose=0, callbacks=[hvd.callbacks.NoiseScaleCallback(32)])
