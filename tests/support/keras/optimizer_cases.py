"""Cases of distributed optimizers of Keras."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.keras import variables
from farandole.runtime.collectives.objects import allgather_object
from tests.support.keras.cases import (
    BACKEND,
    GLOBAL_BATCH,
    OPTIMIZERS,
    ROWS,
    X,
    Y,
    are_close,
    are_same_everywhere,
    case,
    fit,
    fit_alone,
    mine,
    network,
    trains_as_one,
)
from tests.support.raising import raises

COMPILED_BY_TENSORFLOW = {"sgd", "clipped", "accumulated", "averaged"}
"""Of ``OPTIMIZERS``: JAX compiles the others, PyTorch has all, as each backend has where ``TESTS_WITH_ALL`` is set."""


@case
def many_ranks_train_as_one() -> None:
    for name, make in OPTIMIZERS.items():
        if (
            os.environ.get("TESTS_WITH_ALL")
            or BACKEND == "torch"
            or (name in COMPILED_BY_TENSORFLOW) == (BACKEND == "tensorflow")
        ):
            trains_as_one(make, hvd.DistributedOptimizer)


@case
def several_steps_of_one_call_and_eager_ones_train_as_one() -> None:
    if BACKEND != "torch":  # where Keras refuses it
        trains_as_one(OPTIMIZERS["adam"], hvd.DistributedOptimizer, steps_per_execution=4)
    trains_as_one(OPTIMIZERS["sgd"], hvd.DistributedOptimizer, run_eagerly=True)
    trains_as_one(OPTIMIZERS["sgd"], hvd.DistributedOptimizer, jit_compile="auto")


@case
def jit_compile_is_taken_or_refused() -> None:
    if BACKEND == "torch":  # compiles for a minute
        return
    if BACKEND == "jax":
        trains_as_one(OPTIMIZERS["sgd"], hvd.DistributedOptimizer, jit_compile=True)
        return
    model = network()
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse", jit_compile=True)
    with raises(RuntimeError, "jit_compile=False"):
        fit(model)


@case
def factors_are_those_that_were_asked_for() -> None:
    size = hvd.size()

    def summed(optimizer: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, op=hvd.Sum)

    def predivided(optimizer: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, gradient_predivide_factor=2.0)

    alone, together = network(), network()
    alone.compile(keras.optimizers.SGD(0.02 * size), loss="mse")
    together.compile(summed(keras.optimizers.SGD(0.02)), loss="mse")
    fit_alone(alone)
    fit(together)
    are_close(alone, together)
    trains_as_one(OPTIMIZERS["sgd"], predivided)


@case
def passes_are_summed_or_averaged_before_a_step() -> None:
    for make in (keras.optimizers.SGD, lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate))):
        for averages, rate in ((False, 0.1), (True, 0.05)):
            alone, together = network(), network()
            alone.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), loss="mse")
            distributed = hvd.DistributedOptimizer(
                make(rate if averages else 0.05), backward_passes_per_step=2, average_aggregated_gradients=averages
            )
            if averages:
                alone.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=2), loss="mse")
            together.compile(distributed, loss="mse")
            fit_alone(alone)
            fit(together)
            are_close(alone, together)


@case
def compressed_gradients_are_near() -> None:
    alone, together = network(), network()
    alone.compile(keras.optimizers.SGD(0.05), loss="mse")
    together.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=hvd.Compression.fp16), loss="mse")
    fit_alone(alone)
    fit(together)
    for one, other in zip(alone.get_weights(), together.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)
    are_same_everywhere(together)


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    """Make layers with this policy of dtypes."""
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


@case
def half_precision_trains() -> None:
    for name in ("mixed_float16", "mixed_bfloat16", "bfloat16"):
        with policy(name):
            model = network(seed=1 + hvd.rank())
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
            losses = fit(model, epochs=4).history["loss"]
        assert losses[-1] < losses[0]
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (name == "mixed_float16")
        are_same_everywhere(model)


@case
def a_loop_of_ones_own_scales_its_losses_by_itself() -> None:
    """The policy of the layers is none of the optimizer's business."""
    with policy("mixed_float16"):
        weight = keras.Variable(np.ones(3, np.float32))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    for _ in range(2):
        optimizer.apply([keras.ops.full((3,), 1 + hvd.rank(), "float32")], [weight])
    wanted = 1 - 2 * np.mean(np.arange(hvd.size()) + 1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(weight), [wanted] * 3, rtol=1e-6)


class SilentScale(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """As it is before Keras 3.11: it tells the optimizer that it is put around nothing but to build."""

    def __init__(self, inner: Any) -> None:
        super().__init__(keras.optimizers.SGD(1.0))
        self.inner_optimizer = inner


@case
def a_gradient_that_overflows_on_one_rank_skips_the_step_on_all() -> None:
    """Whether losses are scaled inside of the distributed optimizer, or around it."""
    scaled = keras.optimizers.LossScaleOptimizer
    for optimizer in (
        hvd.DistributedOptimizer(scaled(keras.optimizers.SGD(0.05))),
        scaled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))),
        SilentScale(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))),
    ):
        model = network()
        model.compile(optimizer, "mse")
        before = [w.copy() for w in model.get_weights()]
        x = X.copy()
        x[0] = np.inf  # rank 0's
        fit(model, x[:GLOBAL_BATCH], Y[:GLOBAL_BATCH], epochs=1)
        for one, other in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale)) == 2.0**14
        are_same_everywhere(model)


@case
def embeddings_and_random_layers_train() -> None:
    words = np.random.default_rng(2).integers(0, 50, (ROWS, 3)).astype(np.int32)
    target = words.sum(1, keepdims=True).astype(np.float32) / 50

    def made() -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])

    for make in (OPTIMIZERS["adam"], OPTIMIZERS["clipped"]):
        alone, together = made(), made()
        alone.compile(make(), loss="mse")
        together.compile(hvd.DistributedOptimizer(make()), loss="mse")
        fit_alone(alone, words, target)
        fit(together, words, target)
        are_close(alone, together)
        are_same_everywhere(together)
    alone, dense = made(), made()  # whose norms and moments are not those of slices
    alone.compile(OPTIMIZERS["sgd"](), loss="mse")
    dense.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), sparse_as_dense=True), loss="mse")
    fit_alone(alone, words, target)
    fit(dense, words, target)
    are_close(alone, dense)
    keras.utils.set_random_seed(1 + hvd.rank())
    model = network(1 + hvd.rank(), keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    fit(model)
    are_same_everywhere(model)
    hvd.broadcast_variables(model.variables, root_rank=0)
    seeds = allgather_object([array.tolist() for array in variables.read(variables.own_of(model))])
    assert seeds[0]
    assert hvd.size() == 1 or seeds[0] != seeds[1], "masks differ between ranks"


@case
def a_model_is_compiled_again() -> None:
    alone, together = network(), network(1 + hvd.rank())
    plain = keras.optimizers.SGD(0.05, momentum=0.9)
    distributed = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    for _ in range(2):
        alone.compile(plain, loss="mse")
        together.compile(distributed, loss="mse")
        fit_alone(alone)
        fit(together)
    are_close(alone, together)
    for each in (alone, together):
        each.layers[0].trainable = False
    alone.compile(keras.optimizers.SGD(0.05), loss="mse")
    together.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
    fit_alone(alone)
    fit(together)
    are_close(alone, together)
    for each in (alone, together):
        each.layers[0].trainable = True
    together.compile(together.optimizer, loss="mse")
    is_old = tuple(map(int, keras.version().split(".")[:2])) < (3, 9)  # cannot print a variable in a graph
    is_graph = keras.backend.backend() == "tensorflow"
    with raises(NotImplementedError, "eager") if is_old and is_graph else raises(ValueError, "optimizer"):
        fit(together)


@case
def two_models_train_side_by_side_whatever_was_made_before() -> None:
    if hvd.rank() == 0:
        network(5)  # counts the layers of later models up, on this rank alone
    models = [network(seed + hvd.rank()) for seed in (1, 2)]
    oracles = [network(seed) for seed in (1, 2)]
    for model, oracle in zip(models, oracles, strict=True):
        model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
        oracle.compile(keras.optimizers.Adam(0.01), loss="mse")
    for _ in range(2):
        for model, oracle in zip(models, oracles, strict=True):
            fit(model, epochs=1)
            fit_alone(oracle, epochs=1)
    for model, oracle in zip(models, oracles, strict=True):
        are_close(model, oracle)
        are_same_everywhere(model)


@case
def variables_of_tensorflow_train_as_those_of_keras() -> None:
    """As in loops of one's own with a tape, eagerly and compiled."""
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    for run in (tf.function, lambda step: step):
        weight, optimizer = tf.Variable([1.0, 2.0]), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))

        def step(weight: Any = weight, optimizer: Any = optimizer) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight) * (hvd.rank() + 1)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        once = run(step)
        once()
        once()
        np.testing.assert_allclose(weight.numpy(), np.array([1.0, 2.0]) - 0.1 * (hvd.size() + 1), rtol=1e-6)


@case
def a_rank_may_have_no_gradient() -> None:
    if BACKEND != "torch":  # a graph has all of them, or none
        return
    weights = [keras.Variable(np.ones(3, np.float32)), keras.Variable(np.ones(2, np.float32))]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    import torch

    optimizer.apply([torch.ones(3), torch.ones(2) if hvd.rank() == 0 else None], weights)
    assert weights[0].numpy().tolist() == [0, 0, 0]
    np.testing.assert_allclose(weights[1].numpy(), [1 - 1 / hvd.size()] * 2)
    compressing = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=hvd.Compression.bf16)
    compressing.apply([torch.ones(3), torch.ones(2) if hvd.rank() == 0 else None], weights)
    np.testing.assert_allclose(weights[1].numpy(), [1 - 2 / hvd.size()] * 2, rtol=1e-2, atol=1e-2)


@case
def local_layers_stay_local() -> None:
    for scales in (True, False):
        model = network()
        local = model.layers[0]
        distributed = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.05), local_layers=[local], scale_local_gradients=scales
        )
        model.compile(distributed, loss="mse")
        oracle = network()
        oracle.compile(keras.optimizers.SGD(0.05 / (hvd.size() if scales else 1)), loss="mse")
        share = GLOBAL_BATCH // hvd.size()
        fit(model, X[:GLOBAL_BATCH], Y[:GLOBAL_BATCH], epochs=1)
        oracle.fit(mine(X[:GLOBAL_BATCH]), mine(Y[:GLOBAL_BATCH]), batch_size=share, epochs=1, verbose=0)
        for one, other in zip(local.get_weights(), oracle.layers[0].get_weights(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        kernels = allgather_object(model.layers[1].get_weights()[0].tobytes())
        assert len(set(kernels)) == 1


@case
def ranks_outside_of_a_process_set_train_alone() -> None:
    if hvd.size() == 1:
        return
    inside = hvd.add_process_set([0])
    share = GLOBAL_BATCH // hvd.size()
    for passes in (1, 3):
        model, oracle, sgd = network(), network(), keras.optimizers.SGD
        made = hvd.DistributedOptimizer(sgd(0.05), process_set=inside, backward_passes_per_step=passes)
        model.compile(made, loss="mse")  # of the sum of so many passes
        oracle.compile(sgd(0.05 * passes, gradient_accumulation_steps=None if passes == 1 else passes), loss="mse")
        for each in (model, oracle):
            each.fit(mine(X), mine(Y), batch_size=share, epochs=1, verbose=0, shuffle=False)
        are_close(model, oracle)
    hvd.remove_process_set(inside)


@case
def a_saved_model_goes_on_distributed() -> None:
    alone, together = network(), network()
    alone.compile(OPTIMIZERS["sgd"](), loss="mse")
    together.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), loss="mse")
    fit_alone(alone)
    fit(together)
    with tempfile.TemporaryDirectory() as folder:
        together.save(Path(folder, "model.keras"))
        together = hvd.load_model(Path(folder, "model.keras"))
        assert not hasattr(keras.saving.load_model(Path(folder, "model.keras")).optimizer, "_farandole")
    assert int(together.optimizer.iterations) == 2 * ROWS // GLOBAL_BATCH
    fit_alone(alone)
    fit(together)
    are_close(alone, together)
    assert int(together.optimizer.iterations) == 4 * ROWS // GLOBAL_BATCH


@case
def a_copy_of_an_optimizer_is_distributed_and_shares_nothing() -> None:
    first = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    trains_as_one(OPTIMIZERS["sgd"], lambda _: type(first).from_config(first.get_config()))
    assert not first.built
    plain = keras.optimizers.SGD(0.05)
    wrapped = hvd.DistributedOptimizer(plain)
    wrapped.learning_rate = 0.25
    assert float(keras.ops.convert_to_numpy(plain.learning_rate)) == 0.25
    assert isinstance(wrapped, keras.optimizers.SGD)


@case
def what_cannot_be_is_refused() -> None:
    sgd = keras.optimizers.SGD(0.1)
    with raises(ValueError, "wrap it once"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd))
    with raises(ValueError, "takes Average and Sum"):
        hvd.DistributedOptimizer(sgd, op=hvd.Adasum)
    with raises(ValueError, "needs op=Average"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "starts from 1"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with raises(ValueError, "gradient_accumulation_steps=3"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), backward_passes_per_step=3)
    with raises(ValueError, "an optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")
    with raises(ValueError, "is not built"):
        hvd.DistributedOptimizer(sgd, local_layers=[keras.layers.Dense(1)])
    built = network()
    for clipped in (
        keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0)),
    ):
        hvd.DistributedOptimizer(clipped)
        with raises(ValueError, "global_clipnorm with local_layers"):
            hvd.DistributedOptimizer(clipped, local_layers=[built.layers[0]])
    with raises(ValueError, "local_layers with scaled losses"):
        hvd.DistributedOptimizer(
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), local_layers=[built.layers[0]]
        )
    partial = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, clipnorm=1.0), local_layers=[built.layers[0]])
    partial.global_clipnorm = None
    with raises(ValueError, "global_clipnorm with local_layers"):
        partial.global_clipnorm = 1.0
    with raises(ValueError, "wrap it once"):
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd)))
    partial.global_clipnorm = None
    with raises(ValueError, "local_layers with scaled losses"):
        keras.optimizers.LossScaleOptimizer(partial).build(built.trainable_variables)  # before Keras 3.11, only there
    silent = SilentScale(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    with raises(ValueError, "build(model.trainable_variables)"):
        silent.apply([keras.ops.ones(v.shape) for v in built.trainable_variables], built.trainable_variables)


@case
def gradients_of_other_variables_are_not_averaged_with_each_other() -> None:
    """Where ranks step with those of twins: of the same shapes, and of paths that differ by the layers' numbers."""
    if hvd.size() == 1:
        return
    twins = [keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, kernel_initializer="zeros")]) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([variable for twin in twins for variable in twin.trainable_variables])
    own = twins[min(hvd.rank(), 1)].trainable_variables
    with raises(hvd.HorovodInternalError, "with different optimizers"):
        optimizer.apply([keras.ops.ones(variable.shape) for variable in own], own)
    for twin in twins:
        for gradients in (twin.trainable_variables, twins[0].trainable_variables):
            optimizer.apply([keras.ops.ones(variable.shape) for variable in gradients], gradients)


@case
def what_keras_assigns_is_the_largest_of_all_ranks() -> None:
    """As scales of float8, which come in the place of gradients; Keras takes the largest where it accumulates."""
    choices: list[dict[str, Any]] = [{}, {"op": hvd.Sum}, {"backward_passes_per_step": 2}]
    for more in (*choices, {"compression": hvd.Compression.fp16}):
        scale, weights = keras.Variable(1.0), keras.Variable(np.zeros(3, np.float32))
        scale.overwrite_with_gradient = True
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **more)
        optimizer.build([scale, weights])
        for _ in range(more.get("backward_passes_per_step", 1)):
            given = [keras.ops.convert_to_tensor(np.float32(2.5 + hvd.rank())), keras.ops.ones(3)]
            optimizer.apply(given, [scale, weights])
        assert float(keras.ops.convert_to_numpy(scale)) == 1.5 + hvd.size(), more
        steps = hvd.size() if more.get("op") == hvd.Sum else more.get("backward_passes_per_step", 1)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(weights), -float(steps))


@case
def replicas_of_tensorflow_are_refused() -> None:
    """Of which each would step with what it has by itself."""
    if BACKEND != "tensorflow":
        return
    import tensorflow as tf

    weight = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([weight])
    both = tf.distribute.MirroredStrategy(["CPU:0", "GPU:0"], tf.distribute.ReductionToOneDevice())
    with both.scope(), raises(ValueError, "one rank for each device"):
        optimizer.apply([tf.constant([1.0])], [weight])
    tf.distribute.OneDeviceStrategy("CPU:0").run(lambda: optimizer.apply([tf.constant([1.0])], [weight]))
    np.testing.assert_allclose(weight, [0.0])


@case
def different_models_are_refused_on_every_rank() -> None:
    if hvd.size() == 1:
        return
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, use_bias=hvd.rank() == 0)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    with raises(hvd.elastic.HorovodInternalError, ""):
        fit(model, epochs=1, callbacks=[])
