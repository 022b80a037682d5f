"""Checks of ``farandole.jax`` with arrays that are not where JAX puts new ones: two devices and three kinds of memory.

The second device stands for an accelerator: a result must be back on it, in the same memory, committed or not.
"""

from __future__ import annotations

import os

from workbench.quick_xla import QUICK

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=2 {QUICK}"

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import farandole.jax as hvd
from farandole.adapters.jax import pinned_copies, toward_host
from farandole.errors import DivergenceError, UnsupportedError
from tests.support.jax.running import run_all

AWAY = jax.devices()[1]
KINDS = sorted(memory.kind for memory in AWAY.addressable_memories())


def there(values: Any, kind: str | None = None) -> Any:
    """Committed array on the second device, in a kind of its memory."""
    return jax.device_put(values, SingleDeviceSharding(AWAY, memory_kind=kind))


def like(found: Any, given: Any, expected: Any) -> None:
    """Fail unless the array is where the other is, with its dtype and these values."""
    assert isinstance(found, jax.Array)
    assert (found.sharding, found.committed, found.dtype) == (given.sharding, given.committed, given.dtype)
    np.testing.assert_array_equal(np.asarray(found, np.float64), expected)


def verbs() -> list[tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """The eager verbs and their asynchronous forms, each with what it makes of the arrays of all ranks."""
    size, rank = hvd.size(), hvd.rank()

    def every(function: Any, begin: Any, expected: Callable[[Any], Any], **named: Any) -> list[Any]:
        asynchronous = lambda x: hvd.synchronize(begin(x, **named))  # noqa: E731
        return [(lambda x: function(x, **named), expected), (asynchronous, expected)]

    return [
        *every(hvd.allreduce, hvd.allreduce_async, lambda all_: sum(all_), op=hvd.Sum),
        *every(hvd.broadcast, hvd.broadcast_async, lambda all_: all_[-1], root_rank=size - 1),
        *every(hvd.allgather, hvd.allgather_async, np.concatenate),
        *every(hvd.alltoall, hvd.alltoall_async, lambda all_: np.concatenate([np.split(x, size)[rank] for x in all_])),
        *every(hvd.reducescatter, hvd.reducescatter_async, lambda all_: np.split(sum(all_), size)[rank], op=hvd.Sum),
        (lambda x: hvd.grouped_allreduce([x, 1.0], op=hvd.Sum)[0], lambda all_: sum(all_)),
        (lambda x: hvd.broadcast_parameters({"w": x}, size - 1)["w"], lambda all_: all_[-1]),
    ]


def results_are_where_the_arrays_are(rank: int, size: int) -> None:
    with jax.default_device(AWAY):
        loose = [jnp.arange(2.0 * size) + rank, jnp.arange(size)]
    bound = [there(jnp.arange(2.0 * size).astype(kind) + rank) for kind in ("float32", "bfloat16", "int32")]
    kept = [there(np.arange(2.0 * size, dtype=np.float32) + rank, kind) for kind in KINDS]
    mesh = Mesh(np.array([AWAY]), ("one",))
    named = jax.device_put(jnp.ones((size, 2)) + rank, NamedSharding(mesh, PartitionSpec("one", None)))
    for x in (*loose, *bound, *kept, named, jnp.arange(2.0 * size)):
        others = [np.asarray(x, np.float64) + (r - rank) * (x is not loose[1]) for r in range(size)]
        if x.committed is False and x.devices() == {jax.devices()[0]}:
            others = [np.asarray(x, np.float64)] * size
        for verb, expected in verbs():
            like(verb(x), x, expected(others))
    assert not loose[0].committed
    assert loose[0].devices() == {AWAY}


def derivatives_are_where_the_arrays_are(rank: int, size: int) -> None:
    x = there(jnp.arange(2.0 * size))
    weight = jnp.asarray(rank + 1.0)
    total = size * (size + 1) / 2
    like(jax.grad(lambda x: (weight * hvd.allreduce(x, op=hvd.Sum)).sum())(x), x, np.full(2 * size, total))
    value, gradients = hvd.value_and_grad(lambda w: (weight * w).sum(), op=hvd.Sum)(x)
    assert value.devices() == {AWAY}
    like(gradients, x, np.full(2 * size, total))


def steps_of_an_optimizer_are_where_its_parameters_are(rank: int, size: int) -> None:
    """With weights that ranks compare, gradients that a rank lacks, and large ones, which have no bucket."""
    for kind in (None, *KINDS):
        params = {"w": there(jnp.ones(3), kind), "large": there(jnp.zeros((1500, 1000)), kind), "b": there(1.0, kind)}
        grads: dict[str, Any] = {name: there(jnp.full(leaf.shape, rank + 1.0), kind) for name, leaf in params.items()}
        optimizer, mean = hvd.DistributedOptimizer(optax.identity()), (size + 1) / 2
        state = optimizer.init(params)
        for given in (grads, {**grads, "b": None if rank else grads["b"]}):
            found, state = optimizer.update(given, state, params)
            like(found["w"], params["w"], np.full(3, mean))
            like(found["large"], params["large"], np.full((1500, 1000), mean))
        average = hvd.DistributedGradients(params)
        like(average(grads, params)["w"], params["w"], np.full(3, mean))


def weights_that_differ_are_found_there_too(rank: int, size: int) -> None:
    optimizer = hvd.DistributedOptimizer(optax.identity())
    params = {"w": there(jnp.full(3, float(rank)))}
    state, grads = optimizer.init(params), {"w": there(jnp.ones(3))}
    try:
        for _ in range(2):
            optimizer.update(grads, state, params)
    except DivergenceError as error:
        assert "w" in str(error)
    else:
        assert size == 1


def copies_in_pinned_memory_have_the_values(rank: int, size: int) -> None:
    """What arrays of a GPU go through: of one device, of several, of any dtype; and not arrays of host memory."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    given = [there(jnp.arange(4.0) + rank), there(jnp.ones((0, 2), jnp.bfloat16)), there(True)]
    given += [jax.device_put(jnp.arange(8), NamedSharding(mesh, PartitionSpec(axis))) for axis in ("d", None)]
    copies = pinned_copies(given)
    for copied, array in zip(copies, given, strict=True):
        assert copied.sharding.memory_kind == ("pinned_host" if "pinned_host" in KINDS else array.sharding.memory_kind)
        assert copied.devices() == array.devices()
        assert copied.dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(copied), np.asarray(array))
    assert toward_host(given) is given
    for copied in copies[:1]:
        like(hvd.allreduce(copied), copied, np.arange(4.0) + (size - 1) / 2)


def programs_for_other_platforms_are_refused_with_a_remedy(rank: int, size: int) -> None:
    """JAX compiles for a GPU here as far as a collective needs it."""
    optimizer, params = hvd.DistributedOptimizer(optax.sgd(0.1)), {"w": jnp.ones(3)}
    functions: list[tuple[Any, Any]] = [
        (lambda x: hvd.allreduce(x), jnp.ones(3)),
        (lambda x: jax.vmap(hvd.allreduce)(x), jnp.ones((2, 3))),
        (lambda x: optimizer.update(x, optimizer.init(params), params)[0], params),
    ]
    for function, x in functions:
        traced = jax.jit(function).trace(x)
        traced.lower(lowering_platforms=("cpu",))
        for platform in ("cuda", "rocm", "tpu"):
            for platforms in ((platform,), ("cpu", platform)):
                try:
                    traced.lower(lowering_platforms=platforms)
                except UnsupportedError as error:
                    assert f"in a program for {platform}, " in str(error), error
                    assert "hvd.DistributedGradients" in str(error)
                else:
                    raise AssertionError(f"a program for {platforms} was lowered")


if __name__ == "__main__":
    run_all(dict(globals()))
