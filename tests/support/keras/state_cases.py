"""Cases of checkpoints and elastic states for Keras."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.errors import UsageError
from farandole.keras import variables
from farandole.keras.backends import backend
from farandole.keras.model_progress import COUNTS_BATCHES, progress_of
from farandole.largebatch.recipe import recipe
from farandole.numpy.checkpoints import Checkpoints
from farandole.runtime.collectives.objects import allgather_object
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
    network,
    stopping,
)
from tests.support.raising import raises


@case
def no_commit_comes_after_the_last_batch_of_an_epoch() -> None:
    """Workers that came or went at it would find an epoch of which nothing is left."""
    if BACKEND == "torch":  # it has no calls of several steps
        return
    seen: list[tuple[int, int]] = []
    model = network()
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse", steps_per_execution=3)
    state: Any = hvd.elastic.KerasState(model, epoch=0, batch=0)
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: seen.append((state._saved["batch"], state.batch))
    )
    callbacks = [hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.CommitStateCallback(state), look]
    if not COUNTS_BATCHES:
        with raises(UsageError, "which does not tell how many batches a call has had"):
            fit(model, epochs=1, callbacks=callbacks)
        return
    fit(model, epochs=1, callbacks=callbacks)
    assert [saved for saved, _ in seen] == [3, 6, 6]


@case
def a_checkpoint_is_read_although_a_state_was_committed_before() -> None:
    """But not where the state itself was loaded, which is newer."""
    folder = Path("committed-before")
    fit(compiled(OPTIMIZERS["sgd"]()), epochs=2, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    model = compiled(OPTIMIZERS["sgd"](), 5)
    for _ in range(2):  # trained before, with checkpoints of its own, without a state and with another one
        fit(model, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(Path("pretrained"))])
        state: Any = hvd.elastic.KerasState(model, epoch=0)
    state.commit()
    assert fit(model, epochs=4, callbacks=[hvd.callbacks.CheckpointCallback(folder)]).epoch == [2, 3]
    assert state.epoch == 2
    state.restore()
    assert state.epoch == 0
    assert fit(model, epochs=4, callbacks=[hvd.callbacks.CheckpointCallback(folder)]).epoch == []
    other: Any = hvd.elastic.KerasState(compiled(OPTIMIZERS["sgd"](), 7), epoch=3)
    other.load_state_dict(state.state_dict())
    assert fit(other.model, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)]).epoch == [0]


@case
def a_training_goes_on_from_its_checkpoint() -> None:
    folder = Path("checkpoints")
    oracle = compiled(OPTIMIZERS["adam"]())
    fit(oracle, epochs=4)
    first = compiled(OPTIMIZERS["adam"](), 1 + hvd.rank())
    fit(first, epochs=2, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    second = compiled(OPTIMIZERS["adam"](), 5)
    history = fit(second, epochs=4, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    assert history.epoch == [2, 3]
    are_close(oracle, second)
    are_same_everywhere(second)
    assert fit(second, epochs=1, callbacks=[]).epoch == [0], "an ordinary fit begins at its beginning"
    with contextlib.suppress(InterruptedError):
        fit(second, epochs=5, callbacks=[hvd.callbacks.CheckpointCallback(folder), *stopping(0)])
    assert fit(second, epochs=1, callbacks=[]).epoch == [0], "also after one that has failed"
    with raises(ValueError, "another model"):
        other = network(1, keras.layers.Dense(3))
        other.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), loss="mse")
        fit(other, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    with raises(ValueError, "is that of the optimizers Adam, and the model has Adamax: compile it with those"):
        fit(compiled(keras.optimizers.Adamax()), callbacks=[hvd.callbacks.CheckpointCallback(folder)])


@case
def a_model_of_half_the_bits_is_kept_and_handed_over() -> None:
    """Its variables are arrays of ``ml_dtypes`` for NumPy."""
    folder = Path("half")

    def made(first: int) -> Any:
        layer = keras.layers.Dense(1, dtype="bfloat16", kernel_initializer=keras.initializers.Constant(first))
        model = network(1, layer)
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
        return model

    model, second = made(1 + hvd.rank()), made(5)
    fit(model, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    assert fit(second, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)]).epoch == []
    assert everything(second) == everything(model)
    third = made(7 + hvd.rank())
    state: Any = hvd.elastic.KerasState(third, epoch=0)
    state.sync()
    assert "bfloat16" in {variable.dtype for variable in third.variables}
    are_same_everywhere(third)


def everything(model: Any) -> list[Any]:
    """Values of a model and of its optimizer on this rank, those that it shares with no other, too."""
    return [array.tolist() for array in variables.read([*model.variables, *model.optimizer.variables])]


@case
def local_layers_stay_local_in_checkpoints_and_states() -> None:
    """With their statistics and what the optimizer keeps for them."""

    def made(first: int) -> Any:
        model = network(1, keras.layers.Dense(5, kernel_initializer=keras.initializers.Constant(first / 9)),
                        keras.layers.BatchNormalization())  # fmt: skip
        local = model.layers[:2]
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), local_layers=local), loss="mse")
        return model

    folder, model = Path("local-layers"), made(1 + hvd.rank())
    fit(model, epochs=2, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    kept = everything(model)
    for part in (0, 4, 5, len(model.variables) + 2):  # kernel, mean and variance of a batch, velocity
        assert len(set(map(str, allgather_object(kept[part])))) == hvd.size(), part
    second = made(9)
    assert fit(second, epochs=2, callbacks=[hvd.callbacks.CheckpointCallback(folder)]).epoch == []
    assert everything(second) == kept
    state: Any = hvd.elastic.KerasState(second, epoch=2)
    fit(second, epochs=1, callbacks=[])
    state.restore()
    assert everything(second) == kept
    state.sync()
    assert everything(second) == kept
    checkpoints = Checkpoints(folder)
    found = checkpoints.restore()
    assert found is not None
    checkpoints.save(3, {**found.state, "local": found.state["local"] * 2})
    checkpoints.wait()
    with raises(UsageError, f"of {2 * hvd.size()} ranks, and here are {hvd.size()}"):
        fit(made(9), epochs=4, callbacks=[hvd.callbacks.CheckpointCallback(folder)])


@case
def all_optimizers_of_a_model_are_kept() -> None:
    """As a GAN has two, wherever the model has them; one that is not built cannot be restored."""

    def made(count: int) -> Any:
        model = compiled(OPTIMIZERS["sgd"]())
        model.second = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model.more = {"third": keras.optimizers.SGD(0.5, momentum=0.9)}
        for optimizer in (model.second, model.more["third"]):
            weights = model.trainable_variables[:2]
            optimizer.build(weights)
            for _ in range(count):
                optimizer.apply([keras.ops.ones(w.shape) for w in weights], weights)
        return model

    def kept(model: Any) -> list[Any]:
        return [v.tolist() for v in variables.read([*model.second.variables, *model.more["third"].variables])]

    folder, model = Path("two-optimizers"), made(3)
    fit(model, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    second = made(0)
    fit(second, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    assert kept(second) == kept(model)
    state: Any = hvd.elastic.KerasState(second)
    second.second.iterations.assign(7)
    state.restore()
    assert kept(second) == kept(model)
    third = compiled(OPTIMIZERS["sgd"]())
    third.second = keras.optimizers.Adam(0.01)
    fit(third, epochs=1)
    with raises(UsageError, "the model's 'second' is an optimizer that is not built"):
        fit(third, callbacks=[hvd.callbacks.CheckpointCallback(folder)])
    with raises(UsageError, "the model's 'second' is an optimizer that is not built"):
        hvd.elastic.KerasState(third)


@case
def a_saved_accumulation_is_not_taken_for_a_mean_or_a_sum() -> None:
    """As a file says how many batches it is of, and not which of the two."""
    path = f"accumulates-{hvd.rank()}.keras"
    for averages in (False, True):
        wrap = partial(
            hvd.DistributedOptimizer, backward_passes_per_step=2, average_aggregated_gradients=averages
        )  # what the refusal says
        model = network()
        model.compile(wrap(keras.optimizers.SGD(0.05)), loss="mse")
        fit(model, epochs=1)
        model.save(path)
        with raises(
            UsageError, "wrap=lambda optimizer: hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2"
        ):
            hvd.load_model(path)
        loaded = hvd.load_model(path, wrap=wrap)
        fit(loaded, epochs=1)
        fit(model, epochs=1)
        are_close(model, loaded)


@case
def what_a_state_has_committed_is_newer_than_a_checkpoint() -> None:
    """In an elastic ``fit``, a checkpoint is read where the job begins, and not where a generation does."""
    folder, rates = Path("elastic-checkpoints"), Rates()
    schedule = recipe(optimizer="sgd", base_lr=0.1, base_batch=6, global_batch=GLOBAL_BATCH, epochs=4).schedule

    def train(model: Any, state: Any, begin: int, end: int, stop: int = -1) -> None:
        callbacks = [
            hvd.callbacks.CheckpointCallback(folder), hvd.callbacks.SamplesScheduleCallback(schedule, ROWS), rates,
            hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state), *stopping(stop),
        ]  # fmt: skip
        with contextlib.suppress(InterruptedError):
            fit(model, callbacks=callbacks, initial_epoch=begin, epochs=end)

    first = compiled(OPTIMIZERS["adam"]())
    state: Any = hvd.elastic.KerasState(first, epoch=0)
    train(first, state, 0, 2)
    train(first, state, 2, 3, stop=3)
    state.restore()
    kept = [array.copy() for array in variables.read(first.variables)]
    assert (state.epoch, int(first.optimizer.iterations)) == (2, 2 * STEPS + 4)
    seen: list[Any] = []
    look = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_, **__: seen.extend(variables.read(first.variables)))
    fit(first, epochs=1, callbacks=[hvd.callbacks.CheckpointCallback(folder), look])  # counts from 0: 3 - state.epoch
    for before, now in zip(kept, seen, strict=True):
        np.testing.assert_array_equal(before, now)
    second = compiled(OPTIMIZERS["adam"](), 5)
    other: Any = hvd.elastic.KerasState(second, epoch=0)
    rates.seen.clear()
    train(second, other, 0, 4)
    assert (other.epoch, len(rates.seen)) == (4, STEPS)


@case
def an_epoch_begins_in_its_middle() -> None:
    sampler = hvd.elastic.ElasticSampler(X, shuffle=False)
    sampler.record_batch(0, GLOBAL_BATCH // hvd.size())
    batches = hvd.elastic.SampledBatches(sampler, lambda rows: (X[rows], Y[rows]), GLOBAL_BATCH // hvd.size())
    assert len(batches) == STEPS - 1
    model = compiled(OPTIMIZERS["sgd"]())
    state: Any = hvd.elastic.KerasState(model, sampler=sampler, epoch=0, batch=1)
    model.fit(
        batches, verbose=0, shuffle=False,
        callbacks=[
            hvd.elastic.RecordSamplesCallback(batches), hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state, 3),
        ],
    )  # fmt: skip
    assert (sampler.processed_num, state.epoch, state.batch) == (ROWS, 1, 0)
    with raises(ValueError, "nothing is left of epoch 0"):
        hvd.elastic.SampledBatches(sampler, lambda rows: rows)
    with raises(ValueError, "starts from 1"):
        hvd.elastic.CommitStateCallback(state, 0)


@case
def batches_of_a_sampler_are_taken_in_its_order_and_once() -> None:
    """As the sampler is told how many are done; whoever fetches them."""
    for workers in (1, 2):
        sampler = hvd.elastic.ElasticSampler(X)
        batches = hvd.elastic.SampledBatches(
            sampler, lambda rows: (X[rows], Y[rows]), GLOBAL_BATCH // hvd.size(), workers=workers
        )
        model, callbacks = compiled(OPTIMIZERS["sgd"]()), [hvd.elastic.RecordSamplesCallback(batches)]
        with raises(UsageError, "fit(..., shuffle=False)"):
            model.fit(batches, verbose=0, callbacks=callbacks)
        assert sampler.processed_num == 0
        with raises(UsageError, "make new ones for each fit()"):
            model.fit(batches, verbose=0, shuffle=False, epochs=2, callbacks=callbacks)
        assert (sampler.processed_num, int(model.optimizer.iterations)) == (ROWS, STEPS)


@case
def a_state_goes_back_to_its_commit() -> None:
    model = network(1, keras.layers.Dropout(0.5))
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), loss="mse")
    state: Any = hvd.elastic.KerasState(model, epoch=0)
    fit(model)
    state.epoch = 1
    state.commit()
    kept = [array.copy() for array in variables.read(model.variables + model.optimizer.variables)]
    fit(model)
    state.epoch = 2
    state.restore()
    assert state.epoch == 1
    for one, other in zip(kept, variables.read(model.variables + model.optimizer.variables), strict=True):
        np.testing.assert_array_equal(one, other)
    with raises(ValueError, "not built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    with raises(UsageError, "give your value another one"):
        hvd.elastic.KerasState(model, schedule_progress=0)
    shutil.rmtree("checkpoints", ignore_errors=True)


@case
def a_state_keeps_the_progress_of_the_model_that_it_has_now() -> None:
    one, other = network(1), network(2)
    for model in (one, other):
        model.compile(hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), loss="mse")
    state: Any = hvd.elastic.KerasState(one, epoch=0)
    state.model = other
    assert state.schedule_progress is progress_of(other)
    assert vars(progress_of(other))["_elastic"]() is state
    state.commit()
    state.restore()
    assert state.schedule_progress is progress_of(other)


@case
def a_step_that_comes_out_alike_after_a_change_of_the_workers_is_not_compiled_again() -> None:
    if BACKEND != "jax":  # the others compile nothing that takes long
        return
    import jax

    from farandole.jax.executables import forget_traces

    backend.keep_programs()
    forget_traces()  # what was compiled before is not kept
    client = jax.local_devices()[0].client
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    fit(model)
    before = client.live_executables()
    expected = network()
    expected.set_weights(model.get_weights())
    expected.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    forget_traces()  # as another session does
    fit(model)
    assert all(any(each is known for known in before) for each in client.live_executables())
    fit(expected)
    are_close(model, expected, 0)
