"""Checks of states, checkpoints and schedules of JAX in one process: ``farandole run -np 1 python state_checks.py``."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import farandole.jax as hvd
import farandole.jax.executables as executables
from farandole.elastic.worker.state_sync import Inventory
from farandole.errors import CheckpointError, UsageError
from farandole.jax.checkpoints import Checkpoints
from farandole.jax.elastic import JaxState, run
from farandole.jax.executables import CHANGES, forget_traces
from farandole.jax.schedule import learning_rate
from farandole.largebatch import Polynomial, Schedule
from farandole.runtime.session.init import current


def restore_goes_back_to_the_last_commit_also_from_memory_that_was_given_away() -> None:
    params = {"w": jnp.ones(3), "b": (jnp.zeros((), jnp.bfloat16), np.ones(2), 5, None)}
    opt_state = optax.adam(0.1).init(params["w"])
    state: Any = JaxState(params=params, opt_state=opt_state, step=0)
    state.params = jax.tree.map(lambda leaf: leaf + 1, state.params)
    state.step = 1
    state.commit()
    state.params = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 3, tree), donate_argnums=0)(state.params)
    state.step = 2
    state.restore()
    assert state.step == 1
    assert state.params["w"].tolist() == [2, 2, 2]
    assert state.params["b"][0].dtype == jnp.bfloat16
    assert isinstance(state.params["w"], jax.Array)
    assert str(jax.tree.structure(state.opt_state)) == str(jax.tree.structure(opt_state))
    state._parts["params"].load(state._parts["params"].tree())
    other: Any = JaxState(params={**params, "w": jnp.ones(4)}, opt_state=opt_state, step=0)
    with pytest.raises(UsageError, match=r"shape \(4,\) where this worker has"):
        state._parts["params"].load(other._parts["params"].tree())


def an_accumulation_begins_anew_with_each_generation() -> None:
    """Its sums are gradients of one rank, which the others would take for theirs."""
    params = {"w": jnp.ones(2)}
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), backward_passes_per_step=3)
    state: Any = JaxState(params=params, opt_state=optimizer.init(params), step=0)
    _, state.opt_state = optimizer.update(params, state.opt_state, params)
    assert int(state.opt_state.passes) == 1
    state.commit()
    state.restore()
    state.sync()
    assert int(state.opt_state.passes) == 0
    assert state.opt_state.summed["w"].tolist() == [0, 0]


def checkpoints_give_arrays_of_jax_back() -> None:
    saved = {"a": [jnp.arange(3), (jnp.ones((2, 0), jnp.bfloat16),)], "n": 3, "half": jnp.ones(2, jnp.float16)}
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
        checkpoints.save(1, saved)
        found = checkpoints.restore()
    assert found is not None
    assert str(jax.tree.structure(found.state)) == str(jax.tree.structure(saved))
    for one, other in zip(jax.tree.leaves(found.state), jax.tree.leaves(saved), strict=True):
        assert type(one) is type(other)
        assert np.array_equal(one, other)
        assert not isinstance(one, jax.Array) or one.dtype == other.dtype


def wide() -> dict[str, Any]:
    """Arrays of NumPy whose elements JAX would cut to 32 bits, beside some of JAX."""
    return {
        "w": jnp.arange(3),
        "seen": np.array([2**40 + 1, -(2**62)]),
        "ids": [np.array(2**64 - 1, np.uint64), (np.array([0.1, 1e300]), np.array([1e300 + 1j]))],
        "half": np.ones(2, jnp.bfloat16),
        "scales": jnp.full(2, 0.5, jnp.bfloat16),
        "eighths": [jnp.full((2, 3), 0.125, kind).T for kind in (jnp.float8_e5m2, jnp.float8_e4m3fn)],
    }


def alike(found: Any, expected: Any) -> None:
    """Equal, and of the same class and dtype."""
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(expected))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def checkpoints_give_arrays_of_numpy_back_with_all_their_bits() -> None:
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
        checkpoints.save(1, wide())
        found = checkpoints.restore()
    assert found is not None
    alike(found.state, wide())


def a_checkpoint_of_64_bits_is_refused_where_jax_has_32() -> None:
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
        jax.config.update("jax_enable_x64", True)
        try:
            checkpoints.save(1, {"w": jnp.array([2**40 + 1])})
            found = checkpoints.restore()
        finally:
            jax.config.update("jax_enable_x64", False)
        assert found is not None
        assert found.state["w"].tolist() == [2**40 + 1]
        with pytest.raises(CheckpointError, match=r"int64.*jax_enable_x64"):
            checkpoints.restore()


def states_give_arrays_of_numpy_back_with_all_their_bits() -> None:
    state: Any = JaxState(tree=wide(), step=0)
    state.tree = {"w": wide()["w"]}  # another structure, where nothing tells what the leaves were
    state.restore()
    alike(state.tree, wide())
    state.tree = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), wide())
    state.restore()
    alike(state.tree, wide())
    state.tree = jax.tree.map(np.asarray, wide())
    state.restore()
    alike(state.tree, wide())


def a_state_that_comes_from_others_has_all_bits() -> None:
    state: Any = JaxState(tree=wide(), step=0)
    newcomer: Any = JaxState(tree={"w": jnp.zeros(3)}, step=0)
    taken = Inventory(state._parts, state._leaves)
    received = Inventory(newcomer._parts, newcomer._leaves)
    received.adopt(taken.skeletons, ())
    for target, source in zip(received.common(), taken.common(), strict=True):
        target[...] = source
    received.load(received=True)
    alike(newcomer._parts["tree"].value, wide())


def a_state_goes_into_a_checkpoint_and_comes_back() -> None:
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
        checkpoints.save(1, JaxState(tree=wide(), step=3).state_dict())
        found = checkpoints.restore()
    assert found is not None
    state: Any = JaxState(tree={"w": jnp.zeros(3)}, step=0)
    state.load_state_dict(found.state)
    assert state.step == 3
    alike(state._parts["tree"].value, wide())


def a_state_with_named_tuples_of_optax_goes_into_a_checkpoint_and_comes_back() -> None:
    optimizer = hvd.DistributedOptimizer(optax.adam(0.1), backward_passes_per_step=2)

    def trained(steps: int) -> Any:
        state: Any = JaxState(params={"w": jnp.ones(3)}, opt_state=optimizer.init({"w": jnp.ones(3)}), step=0)
        for _ in range(steps):
            updates, state.opt_state = optimizer.update({"w": jnp.arange(3.0)}, state.opt_state, state.params)
            state.params = optax.apply_updates(state.params, updates)
        return state

    before, after = trained(4), trained(0)
    with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
        checkpoints.save(1, before.state_dict())
        found = checkpoints.restore()
    assert found is not None
    after.load_state_dict(found.state)
    alike((after.params, after.opt_state), (before.params, before.opt_state))
    other: Any = JaxState(params={"w": jnp.ones(3)}, opt_state=optax.sgd(0.1, 0.9).init({"w": jnp.ones(3)}), step=0)
    with pytest.raises(UsageError, match=r"\.mu.* where this one has .*\.trace.*same model and optimizer"):
        other.load_state_dict(found.state)
    assert other.params["w"].tolist() == [1.0] * 3


def arrays_of_numpy_that_jax_would_cut_travel_as_such() -> None:
    given = {**wide(), "ids": [np.array(2**62), (np.array([0.1, 1e300]), np.array([1e300 + 1j]))]}
    del given["eighths"]  # which no engine adds
    for one, other in zip(jax.tree.leaves(hvd.broadcast_parameters(given, 0)), jax.tree.leaves(given), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    seen = wide()["seen"]
    handle = hvd.allreduce_async(seen)
    for result in (
        hvd.allreduce(seen), hvd.allreduce(seen[0]).reshape(1), hvd.allgather(seen), hvd.reducescatter(seen),
        hvd.alltoall(seen), hvd.broadcast(seen[::-1], 0), hvd.synchronize(handle),
    ):  # fmt: skip
        assert isinstance(result, np.ndarray)
        assert set(result.tolist()) <= set(seen.tolist())
    assert isinstance(hvd.allreduce(seen.astype(np.int32)), jax.Array)
    assert isinstance(hvd.allreduce(2.5), jax.Array)


def gradients_of_numpy_that_jax_would_cut_are_refused_before_they_are_reduced() -> None:
    params = {"w": np.ones(2)}
    optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["w"].dtype == jnp.float32
    average = hvd.DistributedGradients(params, virtual_workers=1)
    next(average.shards(2))
    with pytest.raises(UsageError, match=r"w is an array of NumPy of 64 bits.*astype"):
        average.add(params)


def a_schedule_is_a_function_of_steps() -> None:
    schedule = Schedule(0.1, 8, 32, 4, warmup_epochs=1, decay=Polynomial())
    position, expected = schedule.begin(320), []
    while not schedule.finished(position):
        expected.append(schedule.rate(position))
        position = schedule.advance(position)
    rate = learning_rate(schedule, 320)
    np.testing.assert_allclose([jax.jit(rate)(i) for i in range(len(expected))], expected, rtol=1e-6)
    assert float(rate(10**6)) == float(np.float32(schedule.rate(position)))
    with pytest.raises(UsageError, match="inject_hyperparams"):
        learning_rate(Schedule(0.1, 8, 32, 4, rule="adascale"), 320)


def executable(function: Any, x: Any, **options: Any) -> Any:
    """What JAX runs for the function."""
    return jax.jit(function, **options).lower(x).compile().runtime_executable()


def a_program_that_comes_out_alike_after_a_change_of_the_workers_is_not_compiled_again() -> None:
    state: Any = JaxState(step=0)

    @run
    def train(_: Any) -> None:
        x = jnp.arange(4.0)
        scale = 2.0

        def scaled(x: Any) -> Any:
            return hvd.allreduce(x, op=hvd.Sum) * scale

        first = executable(scaled, x)
        assert executable(scaled, x, donate_argnums=0) is not first
        forget_traces()
        assert executable(scaled, x) is first
        scale = 3.0
        assert executable(scaled, x) is first  # JAX does not know that it is another one
        forget_traces()
        assert executable(scaled, x) is not first
        assert jax.jit(scaled)(x).tolist() == [0, 3, 6, 9]
        forget_traces()
        scale = 2.0
        assert executable(scaled, x) is first, "the workers that were lost have come again"
        assert jax.jit(scaled)(x).tolist() == [0, 2, 4, 6]
        for _ in range(CHANGES):
            forget_traces()
        assert executable(scaled, x) is first
        for _ in range(CHANGES + 1):
            forget_traces()
        assert executable(scaled, x) is not first, "nobody has asked for it, and it is gone"

    train(state)


def another_session_traces_programs_again() -> None:
    seen = []

    def sized(x: Any) -> Any:
        seen.append(current().topology.generation)
        return x * hvd.size()

    program = jax.jit(sized)
    for times in (1, 2):
        assert [float(program(1.0)), float(program(2.0))] == [1, 2]
        assert len(seen) == times, "traced once in each session"
        hvd.shutdown()
        hvd.init()


def programs_of_a_backend_that_has_ended_are_compiled_again() -> None:
    def doubled(x: Any) -> Any:
        return x * 2

    assert jax.jit(doubled)(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    jax.extend.backend.clear_backends()
    assert jax.jit(doubled)(np.ones(3, np.float32)).tolist() == [2, 2, 2]


def a_program_that_calls_python_calls_what_it_was_traced_with() -> None:
    x, result = jnp.ones(2), jax.ShapeDtypeStruct((2,), jnp.float32)
    for factor in range(1, 5):

        def calling(x: Any, factor: int = factor) -> Any:
            return jax.pure_callback(lambda x: np.asarray(x) * np.float32(factor), result, x)

        assert jax.jit(calling)(x).tolist() == [factor, factor]
        forget_traces()


def a_script_that_compiles_ever_new_programs_keeps_some() -> None:
    before, executables.MOST = executables.MOST, 10
    client = jax.devices()[0].client
    for _ in range(CHANGES + 2):
        forget_traces()
    others = len(client.live_executables())
    for i in range(30):
        jax.jit(lambda x, i=i: x * (i + 0.5))(np.float32(1))
    jax.clear_caches()
    assert len(client.live_executables()) - others == 10
    executables.MOST = before


def programs_with_large_constants_are_kept_up_to_so_many_bytes() -> None:
    before, executables.MOST_BYTES = executables.MOST_BYTES, 2**20
    for _ in range(CHANGES + 2):
        forget_traces()
    client = jax.devices()[0].client
    others = len(client.live_executables())
    for i, kib in enumerate([300, 300, 300, 300, 300, 2000]):
        large = np.random.default_rng(i).random(kib * 256, np.float32)
        jax.jit(lambda x, large=large: x + large)(np.float32(1))
    jax.clear_caches()
    kept = len(client.live_executables()) - others
    assert kept == 3, f"{kept}, and not the last three of those that are no larger than all may be"
    executables.MOST_BYTES = before


def who_asks_for_a_sharding_is_told_after_each_change() -> None:
    """The program names the function by its ``id()``, which the next one may have again."""
    asked = []
    for number in range(20):

        def shown(x: Any, number: int = number) -> Any:
            jax.debug.inspect_array_sharding(x, callback=lambda _: asked.append(number))
            return x + 1

        jax.jit(shown)(np.ones(2, np.float32))
        forget_traces()
    assert asked == list(range(20))


def a_program_for_another_device_is_another_one() -> None:
    """On GPUs JAX's key does not tell them apart."""
    made: list[object] = []

    def compiles(*_: Any) -> object:
        made.append(object())
        return made[-1]

    known, program = executables._Executables(compiles), jax.jit(lambda x: x + 1).lower(1.0).compiler_ir()
    with mock.patch("jax._src.compilation_cache.get_cache_key", return_value="of one GPU"):
        first, other, again = (
            known(jax.devices()[0].client, program, np.array([SimpleNamespace(id=i)]), None, []) for i in (0, 1, 0)
        )
    assert first is again is not other


def a_handler_on_top_of_a_thread_that_compiles_may_compile() -> None:
    known: Any = jax._src.compiler.compile_or_get_cached
    with known._lock:
        assert float(jax.jit(lambda x: x * 7)(np.float32(2))) == 14


if __name__ == "__main__":
    hvd.init()
    restore_goes_back_to_the_last_commit_also_from_memory_that_was_given_away()
    an_accumulation_begins_anew_with_each_generation()
    checkpoints_give_arrays_of_jax_back()
    checkpoints_give_arrays_of_numpy_back_with_all_their_bits()
    a_checkpoint_of_64_bits_is_refused_where_jax_has_32()
    states_give_arrays_of_numpy_back_with_all_their_bits()
    a_state_that_comes_from_others_has_all_bits()
    a_state_goes_into_a_checkpoint_and_comes_back()
    a_state_with_named_tuples_of_optax_goes_into_a_checkpoint_and_comes_back()
    arrays_of_numpy_that_jax_would_cut_travel_as_such()
    gradients_of_numpy_that_jax_would_cut_are_refused_before_they_are_reduced()
    a_schedule_is_a_function_of_steps()
    a_program_that_comes_out_alike_after_a_change_of_the_workers_is_not_compiled_again()
    a_program_that_calls_python_calls_what_it_was_traced_with()
    a_script_that_compiles_ever_new_programs_keeps_some()
    programs_with_large_constants_are_kept_up_to_so_many_bytes()
    who_asks_for_a_sharding_is_told_after_each_change()
    a_program_for_another_device_is_another_one()
    a_handler_on_top_of_a_thread_that_compiles_may_compile()
    another_session_traces_programs_again()
    programs_of_a_backend_that_has_ended_are_compiled_again()
    print("passed", flush=True)
    hvd.shutdown()
