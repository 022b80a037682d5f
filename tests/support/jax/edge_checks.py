"""Checks of ``farandole.jax`` that need ranks, with JAX as it comes: 32 bits, one device. See ``checks.py``."""

from __future__ import annotations

import os

from workbench.quick_xla import QUICK

os.environ["XLA_FLAGS"] = QUICK

import dataclasses
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import layout, sparse

import farandole.jax as hvd
from farandole.errors import UnsupportedError, UsageError
from farandole.jax import programs
from farandole.jax.elastic import JaxState, translated
from tests.support.jax.running import run_all


def same(found: Any, expected: Any) -> None:
    """Fail unless the pytrees are equal."""
    one, other = jax.tree.structure(found), jax.tree.structure(expected)
    assert str(one) == str(other), (found, expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def raises(text: str, act: Callable[[], Any], kind: type[Exception] = UsageError) -> None:
    """Fail unless it raises that."""
    try:
        act()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised; expected {text!r}")


def constants_are_reduced_by_the_program_and_not_where_it_is_traced(rank: int, size: int) -> None:
    """Ranks trace at different times: here rank 0 knows the program when the others trace it for another shape."""
    known = jnp.full(2, 1.0 + rank)
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0))
    state = optimizer.init(known)

    @jax.jit
    def program(x: Any) -> Any:
        rows = hvd.allreduce(float(x.shape[0]), op=hvd.Sum)
        parts = hvd.allgather(known), hvd.broadcast_parameters({"w": known}, size - 1)["w"]
        return rows, *parts, optimizer.update(known, state)[0]

    for rows, expected in ((4, 4 * size), (4, 4 * size), (4 - rank, sum(range(4, 4 - size, -1)))):
        total, gathered, last, update = program(jnp.ones(rows))
        assert float(total) == expected
        same(gathered, np.repeat(np.arange(1.0, size + 1, dtype=np.float32), 2))
        same(last, np.full(2, size, np.float32))
        same(update, np.full(2, -(size + 1) / 2, np.float32))
        assert hvd.allreduce(10.0, op=hvd.Sum) == 10 * size, "nothing else was under way"
    raises("a handle", lambda: jax.jit(lambda x: x + hvd.synchronize(hvd.allreduce_async(1.0)))(1.0))
    same(jax.grad(lambda w: w * hvd.allreduce(float(rank)))(1.0), np.float32((size - 1) / 2))


def arrays_are_given_away_while_they_travel(rank: int, size: int) -> None:
    """XLA takes no memory for the results of a program that another rank has yet to get."""
    reuse = jax.jit(lambda x: x + 100, donate_argnums=0)
    jax.block_until_ready(reuse(jnp.zeros(240_000)))
    for verb in (hvd.allgather_async, hvd.alltoall_async, hvd.reducescatter_async):
        x = jnp.full(240_000, 1.0 + rank)
        early = [verb(x, name="given away")] if rank == 0 else []
        if early:
            jax.block_until_ready(reuse(x))
        hvd.barrier()
        [handle] = early or [verb(x, name="given away")]
        expected = [(size + 1) / 2] if verb == hvd.reducescatter_async else range(1, size + 1)
        same(np.unique(hvd.synchronize(handle)), np.array(expected, np.float32))


def arrays_of_another_layout_travel_by_their_indices(rank: int, size: int) -> None:
    x = np.arange(6.0 * size, dtype=np.float32).reshape(2 * size, 3) + rank
    names: Any = layout
    outer = getattr(names, "Format", names.Layout)  # JAX 0.6 has three names
    order = getattr(names, "DeviceLocalLayout", names.Layout)
    turned = jax.device_put(x, outer(order((1, 0)), jnp.ones(1).sharding))
    for verb in (hvd.allgather, hvd.alltoall, hvd.allreduce, lambda x: hvd.broadcast(x, size - 1)):
        same(verb(turned), verb(x))


def join_waits_for_the_steps_of_its_own_that_are_under_way(rank: int, size: int) -> None:
    optimizer = hvd.DistributedOptimizer(optax.sgd(1.0))
    params = jnp.zeros(2)
    state = optimizer.init(params)
    matrix = jnp.full((200, 200), 1e-3)

    @jax.jit
    def step(params: Any, state: Any, i: Any, matrix: Any) -> Any:
        long = jax.lax.fori_loop(0, 20, lambda _, m: jnp.tanh(m @ m), matrix)
        updates, state = optimizer.update(jnp.full(2, i) + 0 * long[0, 0], state, params)
        return optax.apply_updates(params, updates), state

    for i in range(4 if rank == 0 else 6):
        params, state = step(params, state, float(i), matrix)
    assert hvd.join() != 0 or size == 1
    same(params, np.full(2, -6.0 if rank == 0 else -6.0 - 9.0 * (size - 1) / size, np.float32))


def gradients_by_any_arguments_are_those_of_all_ranks(rank: int, size: int) -> None:
    def loss(weights: Any, x: Any, bias: Any) -> Any:
        return (weights["w"] * x).sum() + 3 * (bias * x).sum()

    x, given = jnp.full(2, rank + 1.0), ({"w": jnp.ones(2)}, jnp.ones(2))
    mean = np.full(2, (size + 1) / 2, np.float32)
    cases: list[tuple[Any, Any]] = [
        (0, {"w": mean}),
        (-1, 3 * mean),
        ((2, 0), (3 * mean, {"w": mean})),
        ([0], ({"w": mean},)),
    ]
    for argnums, expected in cases:
        value, gradients = jax.jit(hvd.value_and_grad(loss, argnums=argnums))(given[0], x, given[1])
        same(value, np.float32(8 * (rank + 1)))
        assert str(jax.tree.structure(gradients)) == str(jax.tree.structure(expected))
        for found, wanted in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
            same(found, wanted)


def trees_with_none_in_the_place_of_a_parameter(rank: int, size: int) -> None:
    """As of a model of which functions are no parameters; they are left out as JAX leaves them out."""
    params = {"w": jnp.ones(2), "activation": None, "b": [None, jnp.ones(3)]}
    grads = jax.tree.map(lambda leaf: leaf * (rank + 1), params)
    mean = jax.tree.map(lambda leaf: leaf * (size + 1) / 2, params)
    for passes, compression in ((1, hvd.Compression.none), (2, hvd.Compression.none), (1, hvd.Compression.fp16)):
        optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), backward_passes_per_step=passes, compression=compression)
        for update in (optimizer.update, jax.jit(optimizer.update)):
            for given in (params, None):
                state = optimizer.init(params)
                for _ in range(passes):
                    found, state = update(grads, state, given)
                same(found, jax.tree.map(partial(jnp.multiply, passes), mean))
    optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0))
    state = optimizer.init(params)
    some = grads if rank == 0 else {**grads, "w": None}
    found = optimizer.update(some, state, params)[0]
    same(found, {**mean, "w": np.full(2, 1 / size, np.float32)} if rank == 0 or found["w"] is not None else mean)
    frozen = {**grads, "w": None}
    same(jax.jit(lambda grads: optimizer.update(grads, state)[0])(frozen), {**mean, "w": None})
    average = hvd.DistributedGradients(params)
    same(average(grads, params), mean)
    raises("a gradient of activation", lambda: average({**grads, "activation": jnp.ones(1)}))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Class of a script's, with an optimizer in it, as Flax has them."""

    params: Any
    opt_state: Any
    tx: Any = dataclasses.field(metadata={"static": True})


def states_of_classes_with_optimizers(rank: int, size: int) -> None:
    """They are saved, restored and received without what no worker could send."""
    tx = hvd.DistributedOptimizer(optax.adam(1e-3))
    params = OrderedDict([("w", jnp.full(2, float(rank))), ("b", np.full(2, float(rank)))])
    state: Any = JaxState(train=TrainState(params, tx.init(params), tx), count=jnp.asarray(0.5), step=0)
    if rank == 0:
        state.train = dataclasses.replace(state.train, params=jax.tree.map(lambda leaf: leaf + 3, params))
        state.save()
    state._is_whole = rank == 0
    state._joined = rank != 0
    state.sync()
    same(state.train.params, OrderedDict([("w", np.full(2, 3.0, np.float32)), ("b", np.full(2, 3.0))]))
    assert state.train.tx is tx
    assert not state.count.weak_type, "another type than that of a worker that has received it"
    state.train = dataclasses.replace(state.train, params=None)
    state.restore()
    same(state.train.params["b"], np.full(2, 3.0))
    assert state.train.tx is tx


def errors_of_a_program_that_jax_runs_from_its_native_cache(rank: int, size: int) -> None:
    """They come as ``ValueError`` there, and elastic jobs need ours."""
    program = jax.jit(lambda x: hvd.allreduce(x, name="warm", op=hvd.Sum))
    for _ in range(3):
        same(program(np.ones(1, np.float32)), np.full(1, size, np.float32))
    try:
        with translated():
            jax.block_until_ready(program(np.ones(1 if rank == 0 else 2, np.float32)))
    except hvd.HorovodInternalError as error:
        assert "differ in the shape" in str(error)
    else:
        assert size == 1
    same(program(np.ones(1, np.float32)), np.full(1, size, np.float32))


def arrays_in_the_other_byte_order(rank: int, size: int) -> None:
    same(hvd.allreduce(np.arange(3, dtype=">f4")), np.arange(3, dtype=np.float32))


def keys_of_random_numbers_travel_as_objects(rank: int, size: int) -> None:
    for key in (jax.random.PRNGKey(rank), jax.random.key(rank)):
        for act in (hvd.broadcast, jax.jit(hvd.broadcast, static_argnums=1)):
            raises(r"np.asarray(jax.random.key_data(key))", partial(act, key, 0))
        same(hvd.broadcast_object(np.asarray(jax.random.key_data(key)), 0), np.zeros(2, np.uint32))


def keys_among_parameters_are_those_of_the_root(rank: int, size: int) -> None:
    """Of the old kind and the new, spread over devices too, and whatever else is unsigned."""
    largest = np.array([2**32 - 1 - rank, rank], np.uint32)
    tree: dict[str, Any] = {
        "old": jax.random.PRNGKey(rank),
        "new": jax.random.key(rank + 7, impl="rbg"),
        "batch": jax.random.split(jax.random.key(rank), 3),
        "numpy": largest,
        "jax": jnp.asarray(largest),
        "one": np.uint32(rank),
        "wide": np.array([2**64 - 1 - rank], np.uint64),
        "w": jnp.full(2, float(rank)),
    }
    for share in (hvd.broadcast_parameters, jax.jit(hvd.broadcast_parameters, static_argnums=1)):
        if share is not hvd.broadcast_parameters:
            del tree["wide"]  # JAX has 32 bits here
        found = share(tree, size - 1)
        assert found["new"].dtype == tree["new"].dtype
        for kind, seed in (("new", size + 6), ("batch", size - 1)):
            key = jax.random.key(seed, impl="rbg") if kind == "new" else jax.random.split(jax.random.key(seed), 3)
            same(jax.random.key_data(found[kind]), jax.random.key_data(key))
        same(jax.random.uniform(found["old"]), jax.random.uniform(jax.random.PRNGKey(size - 1)))
        for name in ("numpy", "jax"):
            assert found[name].dtype == np.uint32
            same(np.asarray(found[name]), np.array([2**32 - size, size - 1], np.uint32))
        assert int(found["one"]) == size - 1
        assert found["old"].dtype == np.uint32
        same(found["w"], np.full(2, size - 1.0, np.float32))
        if "wide" in tree:
            assert int(found["wide"][0]) == 2**64 - size


def whole_numbers_that_a_program_would_cut_are_refused(rank: int, size: int) -> None:
    """JAX makes 0 of 2**40 where it has 32 bits, without a word; those that fit go on."""
    fits = np.array([2**20 + rank], np.int64)
    same(jax.jit(lambda: hvd.broadcast(fits, size - 1))(), jnp.array([2**20 + size - 1]))
    raises("does not hold", jax.jit(lambda: hvd.broadcast(np.array([2**40]), 0)))
    beside = jax.jit(lambda x: hvd.grouped_allreduce([x, np.array([2**40])], op=hvd.Max))
    raises("does not hold", partial(beside, jnp.ones(1)))
    same(hvd.broadcast(np.array([2**40]), 0), np.array([2**40]))


def results_that_one_rank_does_not_use(rank: int, size: int) -> None:
    """The others wait for its part, wherever in a program the call stands."""

    @jax.custom_vjp
    def ours(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="in a custom_vjp")

    ours.defvjp(lambda x: (ours(x), None), lambda _, grad: (grad,))
    inner = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="in a jit"))

    def looped(x: Any) -> Any:
        return jax.lax.scan(lambda sums, _: (sums + hvd.allreduce(x, op=hvd.Sum, name="in a loop"), None), x, None, 3)

    places: dict[str, Callable[[Any], Any]] = {
        "here": lambda x: hvd.allreduce(x, op=hvd.Sum, name="here"),
        "custom_vjp": ours,
        "jit": inner,
        "scan": lambda x: (looped(x)[0] - x) / 3,
        "cond": lambda x: jax.lax.cond(x[0] > 0, lambda: hvd.allreduce(x, op=hvd.Sum, name="branch"), lambda: x),
    }
    for name, place in places.items():

        def loss(x: Any, place: Callable[[Any], Any] = place) -> Any:
            found = place(x)
            return (x * x).sum(), (found if rank == 0 else None)

        for program in (jax.jit(loss), jax.jit(jax.value_and_grad(loss, has_aux=True))):
            found = jax.block_until_ready(program(jnp.ones(2)))
            found = found[0] if isinstance(found[0], tuple) else found
            assert rank or np.array_equal(found[1], [size, size]), (name, found)


def results_unused_in_a_function_that_was_compiled_before(rank: int, size: int) -> None:
    """JAX keeps what it has left of a function for one program, and takes it when it traces others."""
    inner = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="compiled before"))
    x = jnp.full(2, 1.0 + rank)
    jax.block_until_ready(jax.jit(lambda x: (inner(x), 2 * x)[1])(x))

    @jax.jit
    def loss(w: Any, x: Any) -> Any:
        found = inner(x)
        return (w * w).sum(), (found if rank == 0 else None)

    (_, found), grad = jax.block_until_ready(jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.ones(2), x))
    same(grad, jnp.full(2, 2.0))
    assert rank or np.array_equal(found, [size * (size + 1) / 2] * 2), found


def calls_where_programs_are_switched_off(rank: int, size: int) -> None:
    """They are made one by one, those under vmap and in derivatives, too."""
    with jax.disable_jit():
        square = jax.jit(lambda x: (hvd.allreduce(x, op=hvd.Sum, name="off") ** 2).sum())
        values, grads = jax.vmap(jax.value_and_grad(square))(jnp.full((3, 2), 1.0 + rank))
    total = size * (size + 1) / 2
    same(values, jnp.full(3, 2 * total**2))
    same(grads, jnp.full((3, 2), 2 * total * size))


def programs_are_dispatched_without_python(rank: int, size: int) -> None:
    """As those without calls are: JAX dispatches programs with effects in Python, which costs more than the call."""
    program = jax.jit(lambda x: hvd.allreduce(x, name="dispatched"))
    x = program(program(jnp.ones(3)))
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code) if event == "call" else None)
    try:
        program(x)
    finally:
        sys.setprofile(None)
    jaxs = [code.co_qualname for code in entered if "jax/_src" in code.co_filename]
    assert not jaxs, jaxs


def a_call_under_vmap_outside_of_programs(rank: int, size: int) -> None:
    """It is one of the batch, whichever axis that is."""
    x = (2.0 * rank + jnp.arange(6.0)).reshape(3, 2)
    mean = (size - 1.0 + jnp.arange(6.0)).reshape(3, 2)
    for axis in (0, 1):
        mapped: Callable[[Any], Any] = jax.vmap(
            lambda row: hvd.allreduce(row, name="mapped"), in_axes=axis, out_axes=axis
        )
        same(mapped(x), mean)
        same(jax.jit(mapped)(x), mean)


def eager_calls_wait_for_programs_with_their_names(rank: int, size: int) -> None:
    """Else one that comes while the program of another rank is still computing would be taken for the program's."""

    def busy(x: Any) -> Any:
        return jax.lax.fori_loop(0, 30, lambda _, each: jnp.tanh(each @ each / 100), x)[0, 0]

    x = jnp.ones((500, 500) if rank == 0 else (2, 2))
    known = jax.block_until_ready(jnp.float32(100))
    program = jax.jit(lambda one, x: hvd.allreduce(one + 0 * busy(x), op=hvd.Sum, name="both"))
    for eager in (hvd.allreduce, lambda x, **how: hvd.synchronize(hvd.allreduce_async(x, **how))):
        later, now = program(jnp.float32(1), x), eager(known, op=hvd.Sum, name="both")
        same((later, now), (jnp.float32(size), jnp.float32(100 * size)))
    optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), op=hvd.Sum)
    state = optimizer.init(known)
    step = jax.jit(lambda one, x: optimizer.update(one + 0 * busy(x), state)[0])
    later, now = step(jnp.float32(1), x), optimizer.update(known, state)[0]
    same((later, now), (jnp.float32(size), jnp.float32(100 * size)))


def programs_outlive_the_optimizer_of_a_function_that_does_not_wait_for_them(rank: int, size: int) -> None:
    """On rank 0 the last of them have not come to their calls when it goes, on the others they have."""

    def busy(x: Any) -> Any:
        return jax.lax.fori_loop(0, 30, lambda _, each: jnp.tanh(each @ each / 100), x)[0, 0]

    x = jnp.ones((500, 500) if rank == 0 else (2, 2))

    def train(lag: int) -> Any:
        optimizer = hvd.DistributedOptimizer(optax.sgd(-1.0), op=hvd.Sum, lag=lag)
        params = jnp.float32(0)
        state = optimizer.init(params)

        @jax.jit
        def step(params: Any, state: Any, x: Any) -> Any:
            updates, state = optimizer.update(1.0 + 0 * busy(x), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(4):
            params, state = step(jax.block_until_ready(params), state, x)
        for _ in range(4):
            params, state = step(params, state, x)
        return params if rank == 0 else jax.block_until_ready(params)

    for lag in (0, 1):
        params = train(lag)
        gc.collect()
        same(params, jnp.float32((8 - lag) * size))
    assert programs._kept
    hvd.DistributedOptimizer(optax.sgd(0.1))
    assert not programs._kept


def leaves_whose_paths_read_alike_are_two(rank: int, size: int) -> None:
    tree = {"a": {"b": jnp.full(2, 1.0 + rank)}, "a.b": jnp.full(3, 10.0 + rank)}
    middle = (size - 1) / 2
    mean = {"a": {"b": jnp.full(2, 1.0 + middle)}, "a.b": jnp.full(3, 10.0 + middle)}
    same(hvd.DistributedGradients(tree)(tree), mean)
    same(hvd.broadcast_parameters(tree, root_rank=0), {"a": {"b": jnp.full(2, 1.0)}, "a.b": jnp.full(3, 10.0)})


def indices_of_sparse_arrays_are_not_taken_for_numbers(rank: int, size: int) -> None:
    rows = sparse.BCOO((jnp.ones(1 + rank), jnp.arange(1 + rank)[:, None]), shape=(4,))
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
    for act in (
        partial(hvd.allreduce, rows),
        jax.jit(partial(hvd.allreduce, rows)),
        partial(hvd.allreduce_async, rows),
        partial(hvd.allgather, rows),
        partial(hvd.DistributedGradients, rows),
        partial(optimizer.update, rows, optimizer.init(jnp.ones(4))),
    ):
        raises("of a BCOO, whose indices would be reduced as numbers", act, UnsupportedError)


def derivatives_row_by_row_are_refused(rank: int, size: int) -> None:
    """``jax.jacrev`` makes a batch of backward passes, whose exchanges are not made element by element."""
    for gathered in (hvd.allgather, hvd.reducescatter):
        raises("vmap of a collective", partial(jax.jacrev(gathered), jnp.ones((2, 2))), UnsupportedError)


if __name__ == "__main__":
    run_all(dict(globals()))
