"""Checks of ``farandole.jax`` that need ranks: ``farandole run -np 2 python checks.py`` runs all of them in one job.

Two devices per rank. What ranks compute is compared with what one process computes of all ranks' values.
"""

from __future__ import annotations

import os

from workbench.quick_xla import QUICK

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=2 {QUICK}"

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import farandole.jax as hvd
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.step_reducer import living_reducers
from farandole.graphs import calls
from farandole.jax.elastic import JaxState, translated
from farandole.jax.noise import NoiseScale
from farandole.largebatch.noise import Estimate
from farandole.runtime.session.init import settle
from tests.support.jax.running import run_all

jax.config.update("jax_enable_x64", True)


def value(rank: int, *shape: int, seed: int = 0) -> Any:
    """Numbers of a rank."""
    return jnp.asarray(np.random.default_rng(100 * seed + rank).normal(size=shape))


def every(function: Callable[[int], Any]) -> list[Any]:
    """What the function gives for each rank."""
    return [function(rank) for rank in range(hvd.size())]


def raises(kind: type[BaseException], text: str, act: Callable[[], Any]) -> None:
    """Fail unless it raises that, inside of a program or outside."""
    try:
        with translated():
            jax.block_until_ready(act())
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised; expected {text!r}")


def same(found: Any, expected: Any) -> None:
    """Fail unless the pytrees are equal to the last digits."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), found, expected)


def verbs_in_programs(rank: int, size: int) -> None:
    """Each is what it is outside."""
    x = value(rank, 4 * size, 3)
    for verb in (
        lambda x: hvd.allreduce(x),
        lambda x: hvd.allreduce({"a": x, "b": (x[0].astype("float32"), x[1].astype("bfloat16"))}, op=hvd.Max),
        lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, prescale_factor=0.5),
        lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16),
        lambda x: hvd.allgather(x),
        lambda x: hvd.allgather(x[0, 0]),
        lambda x: hvd.grouped_allgather([x, x[0]]),
        lambda x: hvd.broadcast(x, size - 1),
        lambda x: hvd.broadcast_parameters({"w": x, "b": [x[0]]}, 0),
        lambda x: hvd.alltoall(x),
        lambda x: hvd.reducescatter(x[1:], op=hvd.Sum),
        lambda x: hvd.allreduce(x > 0, op=hvd.Min),
        lambda x: hvd.allreduce([]),
    ):
        eager, program = verb(x), jax.jit(verb)
        for _ in range(2):
            same(program(x), eager)
    same(hvd.allreduce(x), sum(every(lambda r: value(r, 4 * size, 3))) / size)


def results_are_arrays_of_jax(rank: int, size: int) -> None:
    """Inputs stay, results last, and programs take them."""
    x = value(rank, 5)
    kept = np.array(x)
    first = hvd.allreduce(x)
    values = np.array(first)
    for _ in range(5):
        hvd.allreduce(value(rank, 5, seed=3))
    assert isinstance(first, jax.Array)
    assert np.array_equal(x, kept)
    assert np.array_equal(first, values)
    same(jax.jit(lambda a: a + 1, donate_argnums=0)(first), values + 1)


def gradients_of_the_sum_of_all_losses(rank: int, size: int) -> None:
    """By finite differences of all ranks' losses together, outside and inside of programs."""
    verbs: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda x: hvd.allreduce(x),
        "sum": lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=3.0),
        "group": lambda x: hvd.grouped_allreduce([x[0], x[1]])[0],
        "allgather": lambda x: hvd.allgather(x),
        "scalars": lambda x: hvd.allgather(x[0, 0]),
        "broadcast": lambda x: hvd.broadcast(x, size - 1),
        "alltoall": lambda x: hvd.alltoall(x),
        "reducescatter": lambda x: hvd.reducescatter(x[1:]),
    }
    x, step = value(rank, 2 * size, 2), 1e-6
    for name, verb in verbs.items():

        def loss(x: Any, verb: Callable[[Any], Any] = verb) -> Any:
            return (jnp.arange(1.0, 1 + jnp.size(found := verb(x))) * jnp.sin(found.ravel())).sum() * (rank + 1)

        outside, inside = jax.grad(loss)(x), jax.jit(jax.grad(loss))(x)
        same(inside, outside)
        for owner in range(size):
            for at in ((0, 0), (1, 1), (2 * size - 1, 0)):
                moved = [float(loss(x.at[at].add(way * step if rank == owner else 0.0))) for way in (1, -1)]
                slope = (sum(hvd.allgather_object(moved[0])) - sum(hvd.allgather_object(moved[1]))) / (2 * step)
                if rank == owner:
                    np.testing.assert_allclose(outside[at], slope, rtol=1e-5, atol=1e-6, err_msg=name)
    if size > 1:
        rows = value(rank, rank + 1)
        weights = jnp.arange(float(sum(range(size + 1))))
        begin = sum(range(rank + 1))
        same(jax.grad(lambda x: (weights * hvd.allgather(x)).sum())(rows), size * weights[begin : begin + rank + 1])
    twice = jax.jit(jax.grad(lambda y: (jax.grad(lambda x: (hvd.allreduce(x) ** 3).sum())(y)).sum()))
    same(twice(jnp.ones(3)), 6 * jnp.ones(3))
    raises(UnsupportedError, "op=Sum and op=Average", lambda: jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max))(1.0))
    mixed = jax.jit(jax.grad(lambda x: hvd.allreduce({"x": x, "n": jnp.arange(3)})["x"].sum()))
    same(mixed(jnp.ones(2)), jnp.ones(2))


def loops_branches_and_batches(rank: int, size: int) -> None:
    """``scan``, ``while_loop``, ``cond`` and ``vmap``; what cannot be is refused."""
    x = value(rank, 3)
    mean = sum(every(lambda r: value(r, 3))) / size
    scanned = jax.jit(lambda x: jax.lax.scan(lambda c, _: (hvd.allreduce(c) + 1, c), x, None, length=7))
    for _ in range(3):
        same(scanned(x)[0], mean + 7)
    back = jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, _: (hvd.allreduce(c) * 2, c), x, None, length=3)[0].sum()))
    same(back(x), 8 * jnp.ones(3))
    loop = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0] < 100, lambda c: hvd.allreduce(c) + 10, x))
    same(loop(jnp.zeros(2)), 100 * jnp.ones(2))
    branch = jax.jit(lambda x, p: jax.lax.cond(p, lambda x: hvd.allreduce(x), lambda x: x, x))
    same(branch(x, True), mean)
    same(branch(x, False), x)
    batch = value(rank, 5, 3)
    means = sum(every(lambda r: value(r, 5, 3))) / size
    same(jax.vmap(hvd.allreduce)(batch), means)
    same(jax.jit(jax.vmap(hvd.allreduce))(batch), means)
    same(jax.jit(jax.vmap(jax.grad(lambda x: (hvd.allreduce(x) ** 2).sum())))(batch), 2 * means)
    raises(UnsupportedError, "under vmap", lambda: jax.vmap(hvd.allgather)(batch))
    raises(UnsupportedError, "under vmap", lambda: jax.jit(jax.vmap(lambda x: hvd.allreduce(x, op=hvd.Adasum)))(batch))


def wrong_calls_in_programs(rank: int, size: int) -> None:
    """A sentence each, on every rank, and the next call works."""
    x = jnp.ones(size)
    again = jax.jit(lambda x: hvd.allreduce(x))
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), "i")
    spread = [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(axes)) for axes in (None, "i")]
    cases: list[tuple[type[BaseException], str, Callable[[], Any]]] = [
        (UsageError, "stands twice in one function", lambda: jax.jit(_named_twice)(x)),
        (UsageError, "leave splits out", lambda: jax.jit(lambda x: hvd.alltoall(x, splits=[1] * size))(x)),
        (UsageError, "a handle is a number", lambda: jax.jit(hvd.allreduce_async)(x)),
        (UsageError, "root_rank", lambda: jax.jit(lambda x: hvd.broadcast(x, size))(x)),
        (UnsupportedError, "does not travel", lambda: jax.jit(hvd.allreduce)(jnp.ones(3, "uint32"))),
        (ValueError, "without the underscore", lambda: hvd.allreduce_(x)),
        *((UsageError, "several local devices", lambda at=at: again(jax.device_put(jnp.ones(4), at))) for at in spread),
    ]
    if size > 1:
        cases += [
            (hvd.HorovodInternalError, "shape", lambda: jax.jit(hvd.allreduce)(jnp.ones(2 + rank))),
            (Exception, "shapes inside of it", lambda: jax.jit(hvd.allgather)(jnp.ones(2 + rank))),
        ]
    if size > 1 and jax.version.__version_info__ >= (0, 6):  # earlier ones do not say which run a call is of
        cases += [
            (Exception, "stands twice in one compiled program", lambda: jax.jit(_inner_twice)(x)),
            # Under a name of its own: the part of the other device may come later than the error of the first one.
            (
                Exception,
                "several local devices",
                lambda: jax.pmap(lambda x: hvd.allreduce(x, name="p"))(jnp.ones((2, 3))),
            ),
        ]
        one_device = jax.jit(lambda x: hvd.allreduce(x, name="one device"))
        jax.block_until_ready(one_device(jnp.ones(3)))
        other = jax.device_put(jnp.ones(3), jax.local_devices()[1])
        cases += [(Exception, "on local device 1, and before that on 0", lambda: one_device(other))]
    for kind, text, act in cases:
        raises(kind, text, act)
        hvd.barrier()
        same(again(x), x)


def _named_twice(x: Any) -> Any:
    return hvd.allreduce(x, name="x") + hvd.allreduce(2 * x, name="x")


_inner = jax.jit(lambda x: hvd.allreduce(x))


def _inner_twice(x: Any) -> Any:
    return _inner(x), _inner(2 * x)


def names_do_not_follow_from_what_a_rank_has_traced(rank: int, size: int) -> None:
    """One rank has traced more than the others: functions of its own, other shapes, and everything again."""
    if rank == 0:
        jax.jit(lambda x: hvd.allreduce(x) + hvd.allgather(x)[0]).lower(jnp.ones(3))

    def mean(x: Any, padding: Any) -> Any:
        return hvd.allreduce(x) + 0 * padding.sum() + hvd.allreduce(2 * x)

    program = jax.jit(mean)
    for turn in range(4):
        same(program(jnp.full(2, float(rank)), jnp.ones(1 + rank * turn)), jnp.full(2, 1.5 * (size - 1)))
        if rank == 0:
            jax.clear_caches()


def one_thread_dispatches_and_runs_in_one_order(rank: int, size: int) -> None:
    """A program that is dispatched again, and others with its names, before the first run is over."""
    begun: list[str] = []
    met = hvd.statistics()["fast_path"]["met"]

    def watched(spec: calls.Spec, *origins: Any, check: Any = calls._runs.check) -> None:
        begun.append(spec.name)
        check(spec, *origins)

    large = jax.jit(lambda x, i: hvd.allreduce(_busy(x)[0, 0] * 0 + i, name="n", op=hvd.Sum))
    small = jax.jit(lambda i: hvd.allreduce(i, name="n", op=hvd.Sum))
    x = value(rank, 200, 200)
    calls._runs.check = watched  # type: ignore[method-assign, assignment]
    try:
        for turn in range(10):
            found = []
            for i in range(6):
                number = jnp.asarray(float((rank + 1) * 10 ** (i % 3) + turn))
                found.append(large(x * (1 + rank), number) if i % 2 == turn % 2 else small(number))
            expected = [sum((r + 1) * 10 ** (i % 3) + turn for r in range(size)) for i in range(6)]
            assert [float(each) for each in found] == expected, turn
    finally:
        del calls._runs.check
    assert set(begun) <= {"n"}
    assert len(begun) + hvd.statistics()["fast_path"]["met"] - met == 60


def _busy(x: Any) -> Any:
    return jax.lax.fori_loop(0, 20, lambda _, c: jnp.tanh(c @ c / 100), x)


def arrays_on_several_local_devices(rank: int, size: int) -> None:
    """Reduced as a whole, once, and put back where they were."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    for spec in (PartitionSpec("d"), PartitionSpec()):
        sharding = NamedSharding(mesh, spec)
        x = jax.device_put(value(rank, 4), sharding)
        mean = sum(every(lambda r: value(r, 4))) / size
        for found in (hvd.allreduce(x), hvd.synchronize(hvd.allreduce_async([x]))[0]):
            same(found, mean)
            assert found.sharding == sharding
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0))
        updates, _ = optimizer.update({"w": x}, optimizer.init({"w": x}))
        same(updates["w"], -mean)
        assert updates["w"].sharding == sharding
    there = jax.device_put(value(rank, 4), jax.devices()[1])
    for found in (hvd.allreduce(there), jax.jit(lambda x: hvd.allreduce(x))(there)):  # one name is for one device
        same(found, mean)
        assert found.devices() == {jax.devices()[1]}


def _loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["in"]["w"] + params["in"]["b"])
    return ((hidden @ params["out"] - y) ** 2).mean()


def _model() -> Any:
    return {"in": {"w": value(0, 6, 8, seed=7), "b": jnp.zeros(8)}, "out": value(0, 8, seed=8) / 4}


def _batch(step: int, size: int) -> tuple[Any, Any]:
    x = value(step, 12, 6, seed=9)
    return x, jnp.sin(x.sum(1))


def _alone(make: Callable[[], Any], steps: int, passes: int = 1) -> Any:
    params, optimizer = _model(), make()
    state = optimizer.init(params)
    for step in range(0, steps, passes):
        each = [jax.grad(_loss)(params, *_batch(step + i, 1)) for i in range(passes)]
        updates, state = optimizer.update(jax.tree.map(lambda *g: sum(g), *each), state, params)
        params = optax.apply_updates(params, updates)
    return params


def many_workers_are_one_worker(rank: int, size: int) -> None:
    """Outside and inside of programs, with accumulation, predivision, and gradients reduced while they appear."""
    makes: dict[str, Callable[[], Any]] = {
        "sgd": lambda: optax.sgd(0.1, momentum=0.9),
        "adam": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01)),
    }
    for make in makes.values():
        expected = _alone(make, 20)
        for factor, jitted in ((1.0, True), (1.0, False), (2.0, True)):
            optimizer = hvd.DistributedOptimizer(make(), gradient_predivide_factor=factor)
            _as_alone(optimizer, jax.grad(_loss), expected, jitted=jitted)
        _as_alone(make(), lambda *given: hvd.value_and_grad(_loss, bucket_bytes=100)(*given)[1], expected)
        expected = _alone(make, 20, passes=2)
        for jitted in (True, False):
            optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)
            _as_alone(optimizer, jax.grad(_loss), expected, jitted=jitted)


def _as_alone(optimizer: Any, gradients_of: Callable[..., Any], expected: Any, jitted: bool = True) -> None:
    rank, size = hvd.rank(), hvd.size()
    params = hvd.broadcast_parameters(jax.tree.map(lambda p: p * (rank == 0), _model()), 0)
    state = hvd.broadcast_optimizer_state(optimizer.init(params), 0)

    def step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradients_of(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    program = jax.jit(step) if jitted else step
    for i in range(20):
        x, y = _batch(i, size)
        params, state = program(params, state, x[rank::size], y[rank::size])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, expected)


def large_gradients_that_are_read_elsewhere_stay_what_they_are(rank: int, size: int) -> None:
    """Each is reduced where it lies, if nothing else of the program reads it; donated parameters, too."""
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), op=hvd.Sum)
    state = optimizer.init(jnp.zeros((700, 600)))

    def step(params: Any, x: Any) -> tuple[Any, ...]:
        mine = jax.grad(lambda p: (p * x).sum())(params)
        updates, _ = optimizer.update(mine, state, params)
        return optax.apply_updates(params, updates), mine, optax.global_norm(mine)

    for program in (step, jax.jit(step), jax.jit(step, donate_argnums=0), jax.jit(step, donate_argnums=(0, 1))):
        x = jnp.full((700, 600), rank + 1.0)
        for _ in range(2):
            params, gradient, norm = program(jnp.ones((700, 600)), jnp.copy(x))
            same(params, np.full((700, 600), 1.0 - size * (size + 1) / 2))
            same(gradient, x)
            np.testing.assert_allclose(norm, (rank + 1) * 420_000**0.5, rtol=1e-6)
        only = jax.jit(lambda p, g: optimizer.update(g, state, p)[0])  # an argument is the caller's
        same(only(jnp.ones((700, 600)), x), np.full((700, 600), -size * (size + 1) / 2))
        same(x, np.full((700, 600), rank + 1.0))


def ranks_stay_bit_identical(rank: int, size: int) -> None:
    """After a hundred steps in float32, with steps dispatched ahead."""
    optimizer = hvd.DistributedOptimizer(optax.adam(0.01), compression=hvd.Compression.bf16)
    params: Any = jax.tree.map(lambda p: p.astype("float32"), _model())
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(_loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    for i in range(100):
        x, y = (each.astype("float32") for each in _batch(i, size))
        params, state = step(params, state, x[rank::size], y[rank::size])
    mine = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((params, state))]
    assert all(theirs == mine for theirs in hvd.allgather_object(mine))


def a_rank_without_a_gradient_accumulates_too(rank: int, size: int) -> None:
    """It contributes nothing; before the step, its updates are zeros like those of the others."""
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2)
    params = {"w": jnp.ones(2), "b": jnp.ones(())}
    state = optimizer.init(params)
    for turn in range(4):
        gradients = {"w": jnp.ones(2), "b": None if rank == size - 1 else jnp.ones(())}
        updates, state = optimizer.update(gradients, state, params)
        expected = (turn % 2) * -2.0
        same(updates, {"w": jnp.full(2, expected), "b": jnp.asarray(expected * (size - 1) / size)})


def a_rank_without_a_gradient_gets_that_of_the_others_compressed_or_not(rank: int, size: int) -> None:
    """In the dtype of the parameters, whatever travels."""
    params = {"w": jnp.ones(2), "b": jnp.ones((), "float32")}
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0), compression=compression)
        state = optimizer.init(params)
        for _ in range(2):
            gradients = {"w": jnp.ones(2), "b": None if rank == 0 and size > 1 else jnp.ones((), "float32")}
            updates, state = optimizer.update(gradients, state)
            share = (size - 1) / size if size > 1 else 1.0
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), updates, {"w": -jnp.ones(2), "b": -share}
            )
            assert {key: each.dtype for key, each in updates.items()} == {
                key: each.dtype for key, each in params.items()
            }


def gradients_that_lag(rank: int, size: int) -> None:
    """Zeros, then those of the step before."""
    optimizer = hvd.DistributedOptimizer(optax.identity(), lag=1)
    state = optimizer.init({"w": jnp.zeros(2)})
    update = jax.jit(optimizer.update)
    for step in range(5):
        found, state = update({"w": value(rank, 2, seed=step)}, state)
        before = [value(r, 2, seed=max(step - 1, 0)) for r in range(size)]
        expected = sum(before) / size if step else jnp.zeros(2)
        same(found["w"], expected)


def shards_give_the_same_bits_on_any_number_of_ranks(rank: int, size: int) -> None:
    """With dropout, running statistics and Adam in float32: all ranks, and one of them alone."""
    own = hvd.add_process_set([0]) if size > 1 else hvd.global_process_set
    together = _of_shards(hvd.global_process_set)
    assert hvd.allgather_object(together) == [together] * size
    if rank == 0:
        assert _of_shards(own) == together, f"{size} ranks have other bits than one"
    average = hvd.DistributedGradients({"w": jnp.ones(2)}, virtual_workers=4)

    def inside(w: Any) -> Any:
        for _ in average.shards(4):
            average.add({"w": w})
        return average.total()

    raises(UsageError, "inside of jit, grad or vmap", lambda: jax.jit(inside)(jnp.ones(2)))
    raises(UsageError, "a pytree of v, where it was made of one of w", lambda: average({"v": jnp.ones(2)}))
    hvd.barrier()
    if size > 1:
        hvd.remove_process_set(own)


def _of_shards(process_set: Any) -> bytes:
    """Parameters and statistics after ten steps with virtual workers."""
    params = jax.tree.map(lambda leaf: leaf.astype("float32"), _model())
    held = {"params": params, "mean": jnp.zeros(6, "float32")}
    average = hvd.DistributedGradients(held, virtual_workers=5, process_set=process_set)
    optimizer = optax.adam(0.01)
    state, key = optimizer.init(params), jax.random.PRNGKey(3)

    def loss_of(params: Any, x: Any, y: Any, key: Any) -> Any:
        return _loss(params, jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0), y)

    @jax.jit
    def step(held: Any, state: Any, total: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(total["params"], state, held["params"])
        return {"params": optax.apply_updates(held["params"], updates), "mean": total["mean"]}, state

    gradients_of = jax.jit(jax.grad(loss_of))
    for i in range(10):
        x, y = (each.astype("float32") for each in _batch(i, 1))
        for shard in average.shards(len(x)):
            drawn = jax.random.fold_in(jax.random.fold_in(key, average.steps), shard.number)
            found = gradients_of(held["params"], x[shard.rows], y[shard.rows], drawn)
            average.add({"params": found, "mean": 0.9 * held["mean"] + 0.1 * x[shard.rows].mean(0)})
        held, state = step(held, state, average.total())
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((held, state)))


def noise_of_gradients(rank: int, size: int) -> None:
    """All ranks have one estimate, near the truth: gradients 1 + noise of variance 4 per sample."""
    if size == 1:
        return
    optimizer = hvd.DistributedOptimizer(optax.identity())
    params = {"w": jnp.zeros(400)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    noise = NoiseScale(optimizer, params, every=1)
    random = np.random.default_rng(rank)
    for _ in range(40):
        noise.saw(8)
        jax.block_until_ready(update({"w": jnp.asarray(1 + 2 * random.normal(size=(8, 400)).mean(0))}, state))
    found = noise.estimate()
    assert isinstance(found, Estimate)
    assert abs(found.b_simple - 4) < 1, found
    assert len(set(hvd.allgather_object(found.b_simple))) == 1


def a_step_whose_values_have_failed_is_not_committed(rank: int, size: int) -> None:
    """Neither what has failed nor what was computed beside it; and the state goes back to the last commit."""
    if size == 1:
        return
    state: Any = JaxState(good=jnp.zeros(2), bad=jnp.zeros(2))
    state.sync()
    state.commit()
    fail = jax.jit(lambda x: hvd.allreduce(x, name="of two shapes"))

    def step() -> None:
        with translated():  # JAX tells of the failure at the call, or where its result is used
            state.good, state.bad = state.good + 1, fail(jnp.ones(2 + rank))
        state.commit()

    for _ in range(2):
        raises(hvd.HorovodInternalError, "differ in the shape", step)
        state.restore()
        same(state.good, jnp.zeros(2))
        same(state.bad, jnp.zeros(2))


def other_threads_work_under_other_names(rank: int, size: int) -> None:
    """Programs of several threads overtake each other."""

    def work(name: str) -> None:
        program = jax.jit(lambda x: hvd.allreduce(x, name=name, op=hvd.Sum))
        for i in range(20):
            if float(program(jnp.asarray(float(i + rank)))) != size * i + sum(range(size)):
                wrong.append(name)

    wrong: list[str] = []
    threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(3)]
    for thread in threads[:: 1 if rank % 2 else -1]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def optimizers_that_are_gone_keep_no_buckets(rank: int, size: int) -> None:
    """A program that outlives its optimizer still reduces."""
    gc.collect()  # optimizers of the checks before, which may go at any moment
    settle()
    before = len(living_reducers())

    def build() -> Any:
        optimizer = hvd.DistributedOptimizer(optax.sgd(1.0))
        program = jax.jit(lambda p: optimizer.update(p, optimizer.init(p))[0])
        jax.block_until_ready(program(jnp.full(3, 1.0 + rank)))
        return program.lower(jnp.ones(3)).compile()

    compiled = build()
    settle()  # until then they are kept, for programs that are still to run
    assert len(living_reducers()) == before
    for _ in range(2):
        same(compiled(jnp.full(3, 1.0 + rank)), jnp.full(3, -(size + 1) / 2))


def programs_of_every_device_are_awaited(rank: int, size: int) -> None:
    """Before a rank leaves, or joins: the others need its part."""
    for device in jax.devices():
        program = jax.jit(lambda x, name=f"of {device}": hvd.allreduce(x @ x, op=hvd.Sum, name=name))
        x = jax.device_put(jnp.ones((700, 700)), device)
        jax.block_until_ready(program(x))
        found = program(x)
        settle()
        assert found.is_ready(), device
        same(found[0, 0], 700.0 * size)


def a_program_of_another_session(rank: int, size: int) -> None:
    """It goes on where ranks are the same; this check is the last, as it may find they are not."""
    program = jax.jit(lambda x: hvd.broadcast(x, 0) + hvd.allreduce(x))
    for _ in range(2):
        same(program(jnp.ones(2)), 2 * jnp.ones(2))
        hvd.shutdown()
        hvd.init()
    text = calls.Spec("broadcast", "x", root=0, seat=(rank + 1, size)).encode()
    from farandole.jax.programs import call

    raises(
        UsageError, "trace the program again", lambda: call(text, [jnp.ones(1)], [jax.ShapeDtypeStruct((1,), float)])
    )


if __name__ == "__main__":
    run_all(dict(globals()))
