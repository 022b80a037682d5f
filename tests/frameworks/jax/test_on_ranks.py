"""``farandole.jax`` on ranks: one job runs many checks, as JAX takes a second to import."""

from __future__ import annotations

from typing import Any

from tests.support.frameworks import skip_without
from tests.support.paths import SUPPORT

skip_without("jax")

HERE = SUPPORT / "jax"


def test_checks(launch: Any) -> None:
    lines = launch(2, HERE / "checks.py", deadline_s=580.0).ok().lines()
    assert len(lines) == 2
    assert all("checks passed" in line for line in lines)


def test_edge_checks(launch: Any) -> None:
    assert all("checks passed" in line for line in launch(2, HERE / "edge_checks.py").ok().lines())


def test_arrays_that_are_not_where_jax_puts_new_ones(launch: Any) -> None:
    lines = launch(2, HERE / "device_checks.py").ok().lines()
    assert len(lines) == 2
    assert all("6 checks passed" in line for line in lines)


def test_states_checkpoints_and_schedules(launch: Any) -> None:
    assert launch(1, HERE / "state_checks.py").ok().lines() == ["passed"]


def test_another_structure_of_gradients_in_the_program_of_one_rank_is_told_to_all(launch: Any) -> None:
    """In a step after the first, when the others are in the reduction of what they had before."""
    script = """
        import jax, jax.numpy as jnp, optax
        import farandole.jax as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
        params = {"a": jnp.ones(5)}
        for step in range(3):
            if step == 2 and hvd.rank() == 1:
                params["b"] = jnp.ones(3)
            try:
                jax.block_until_ready(jax.jit(optimizer.update)(params, optimizer.init(params), params))
            except Exception as error:
                print(step, error)
        """
    options = ["--stall-check-warning-time-seconds", "4"]
    lines = launch(2, script, options=options).ok().lines()
    assert len(lines) == 2
    for line in lines:
        assert "2 INTERNAL: farandole.errors.MismatchError: ranks have waited for each other for long" in line
        assert "rank 1 on" in line
        assert "in connecting jax" in line
