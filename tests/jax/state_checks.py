"""Checks of states, checkpoints and schedules of JAX in one process: ``farandole run -np 1 python state_checks.py``."""

from __future__ import annotations

import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import farandole.jax as hvd
from farandole.errors import UsageError
from farandole.jax.checkpoints import Checkpoints
from farandole.jax.elastic import JaxState
from farandole.jax.schedule import learning_rate
from farandole.largebatch import Polynomial, Schedule


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
    with pytest.raises(UsageError, match=r"shape \(4,\) where this worker has"):
        state._parts["params"].load({**state._parts["params"].tree(), "w": np.ones(4, np.float32)})


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


if __name__ == "__main__":
    hvd.init()
    restore_goes_back_to_the_last_commit_also_from_memory_that_was_given_away()
    checkpoints_give_arrays_of_jax_back()
    a_schedule_is_a_function_of_steps()
    print("passed", flush=True)
    hvd.shutdown()
