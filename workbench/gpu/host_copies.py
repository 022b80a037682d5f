"""Checks of arrays that travel by way of host memory: those of JAX and TensorFlow on a GPU.

On a CPU a second device stands for the GPU. Results must be on the device of the arrays.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def of_jax(device: Any) -> None:
    """Eager collectives, steps of an optimizer, and the sentence that refuses a program for a GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks share the GPU
    if device.type == "cpu":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax
    import jax.numpy as jnp

    import farandole.jax as hvd

    place = jax.devices()[-1]
    if device.type == "cuda":
        place = jax.local_devices()[0]
        assert place.platform == "gpu", f"JAX {jax.__version__} sees no GPU here, only {jax.devices()}"
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    with jax.default_device(place):
        loose = jnp.ones(2 * size) * (rank + 1)
    for x in (*(jax.device_put(loose.astype(kind), place) for kind in ("float32", "bfloat16", "int32")), loose):
        found = {
            "allreduce": (hvd.allreduce(x, op=hvd.Sum), np.full(2 * size, total)),
            "async": (hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)), np.full(2 * size, total)),
            "broadcast": (hvd.broadcast(x, size - 1), np.full(2 * size, size)),
            "allgather": (hvd.allgather(x), np.repeat(np.arange(1, size + 1), 2 * size)),
            "alltoall": (hvd.alltoall(x), np.repeat(np.arange(1, size + 1), 2)),
            "reducescatter": (hvd.reducescatter(x, op=hvd.Sum), np.full(2, total)),
        }
        for verb, (result, expected) in found.items():
            assert (result.sharding, result.committed, result.dtype) == (x.sharding, x.committed, x.dtype), verb
            np.testing.assert_array_equal(np.asarray(result, np.float64), expected, err_msg=verb)
    print(f"rank {rank}: collectives of arrays on {place}")
    _jax_trains(hvd, place)
    _jax_refuses(hvd, place)
    if device.type == "cuda":
        _jax_copies(place)
    hvd.shutdown()


def _jax_trains(hvd: Any, place: Any) -> None:
    """The weights equal those of one process on the joined batch."""
    import jax
    import jax.numpy as jnp
    import optax

    def loss(params: Any, x: Any) -> Any:
        return (jnp.tanh(x @ params["w"]) @ params["v"] ** 2).mean()

    def batch(step: int, rank: int) -> Any:
        return np.random.default_rng(10 * step + rank).normal(size=(8, 32)).astype(np.float32)

    gradients_of = jax.jit(jax.grad(loss))
    begin = {"w": jnp.full((32, 64), 0.1), "v": jnp.linspace(-1, 1, 64)}
    params, alone = jax.device_put((begin, begin), place)
    optimizer, plain = hvd.DistributedOptimizer(optax.adam(1e-2)), optax.adam(1e-2)
    state, its = optimizer.init(params), plain.init(alone)
    average = hvd.DistributedGradients(params)
    for step in range(3):
        own = gradients_of(params, batch(step, hvd.rank()))
        joined = gradients_of(alone, np.concatenate([batch(step, rank) for rank in range(hvd.size())]))
        for mine, wanted in zip(jax.tree.leaves(average(own, params)), jax.tree.leaves(joined), strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)
        updates, state = optimizer.update(own, state, params)
        params = optax.apply_updates(params, updates)
        updates, its = plain.update(joined, its, alone)
        alone = optax.apply_updates(alone, updates)
    for mine, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(alone), strict=True):
        assert mine.devices() == {place}
        np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=1e-4)
    print(f"rank {hvd.rank()}: 3 steps of optax.adam")


def _jax_refuses(hvd: Any, place: Any) -> None:
    import jax

    from farandole.errors import UnsupportedError

    x = jax.device_put(np.ones(3, np.float32), place)
    program = jax.jit(hvd.allreduce)
    try:
        if place.platform == "cpu":
            program.trace(x).lower(lowering_platforms=("cuda",))
        else:
            program(x)
    except UnsupportedError as error:
        print(f"rank {hvd.rank()}: refused: {error}")
    else:
        raise AssertionError("a program for a GPU with a collective was compiled")


def _jax_copies(place: Any) -> None:
    """Milliseconds of a copy of 64 MiB to the host, through pinned memory and without."""
    import jax

    from farandole.adapters.jax import pinned_copies, toward_host

    x = jax.block_until_ready(jax.device_put(np.ones(2**24, np.float32), place))
    assert toward_host([x])[0] is not x, f"{place} has no pinned host memory: {place.addressable_memories()}"
    ways: dict[str, Callable[[Any], Any]] = {
        "pinned": lambda x: np.asarray(pinned_copies([x])[0]),
        "as it comes": np.asarray,
    }
    for name, way in ways.items():
        taken = []
        for _ in range(6):
            fresh = jax.block_until_ready(x + 0)  # JAX keeps the copies of an array
            begin = time.perf_counter()
            way(fresh)
            taken.append((time.perf_counter() - begin) * 1e3)
        print(json.dumps({name: round(statistics.median(taken[1:]), 3)}))


def of_tensorflow(device: Any) -> None:
    """Eager collectives, a tape, and a function."""
    import tensorflow as tf

    import farandole.tensorflow as hvd

    if device.type == "cuda":
        gpus = tf.config.list_physical_devices("GPU")
        assert gpus, f"TensorFlow {tf.__version__} sees no GPU here"
        tf.config.experimental.set_memory_growth(gpus[0], True)  # ranks share the GPU
    else:
        [cpu] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    place = tf.config.list_logical_devices("GPU" if device.type == "cuda" else "CPU")[-1].name
    hvd.init()
    _tensorflow_reduces(hvd, place)
    _tensorflow_steps(hvd, place)
    hvd.shutdown()


def _tensorflow_reduces(hvd: Any, place: str) -> None:
    import tensorflow as tf

    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    for dtype in (tf.float32, tf.bfloat16, tf.int32):
        with tf.device(place):
            x = tf.identity(tf.fill([2 * size], tf.cast(rank + 1, dtype)))
        for found, expected in (
            (hvd.allreduce(x, op=hvd.Sum), np.full(2 * size, total)),
            (hvd.synchronize(hvd.allreduce_async(x, op=hvd.Sum)), np.full(2 * size, total)),
            (hvd.broadcast(x, size - 1), np.full(2 * size, size)),
            (hvd.allgather(x), np.repeat(np.arange(1, size + 1), 2 * size)),
            (hvd.alltoall(x), np.repeat(np.arange(1, size + 1), 2)),
            (hvd.reducescatter(x, op=hvd.Sum), np.full(2, total)),
        ):
            assert (found.device, found.dtype) == (x.device, dtype)
            np.testing.assert_array_equal(tf.cast(found, tf.float64), expected)
    print(f"rank {rank}: collectives of tensors on {x.device}")


def _tensorflow_steps(hvd: Any, place: str) -> None:
    """Steps with a tape, eager and in a function, whose variable stays where it is."""
    import tensorflow as tf

    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    with tf.device(place):
        variable = tf.Variable(tf.ones(3))

    def step() -> Any:
        with tf.device(place), tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (rank + 1.0)
        [gradient] = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        with tf.device(place):
            variable.assign_sub(gradient)
            return hvd.allreduce(loss, op=hvd.Sum) + gradient[0]

    mean, weight = total / size, 1.0
    for run in (step, tf.function(step), step):
        expected = 3 * weight * total + mean
        np.testing.assert_allclose(run(), expected, rtol=1e-5)
        weight -= mean
        np.testing.assert_allclose(variable.numpy(), [weight] * 3, rtol=1e-5)
        assert variable.device.endswith(place[-6:])
    print(f"rank {rank}: steps of a tape, eager and in a function")
