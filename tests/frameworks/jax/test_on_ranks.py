"""``farandole.jax`` on ranks: one job runs many checks, as JAX takes a second to import."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from tests.support.frameworks import skip_without
from tests.support.paths import ROOT, SUPPORT

skip_without("jax")

HERE = SUPPORT / "jax"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4] if os.environ.get("LARGE") else [2])
def test_checks(launch: Any, ranks: int) -> None:
    lines = launch(ranks, HERE / "checks.py", deadline_s=580.0).ok().lines()
    assert len(lines) == ranks
    assert all("checks passed" in line for line in lines)


def test_edge_checks(launch: Any) -> None:
    assert all("checks passed" in line for line in launch(2, HERE / "edge_checks.py").ok().lines())


def test_states_checkpoints_and_schedules(launch: Any) -> None:
    assert launch(1, HERE / "state_checks.py").ok().lines() == ["passed"]


def test_calls_of_a_program_meet_by_name_in_whatever_order_they_run(launch: Any) -> None:
    assert launch(2, HERE / "stress.py", arguments=["200"], deadline_s=580.0).ok().lines() == ["equal"] * 2


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


def test_the_example_learns_and_waits_for_its_programs_before_it_leaves(launch: Any) -> None:
    """A worker that shuts down while programs are dispatched and not over takes nothing from the others."""
    finished = launch(2, ROOT / "examples" / "jax_digits.py", deadline_s=400.0).ok()
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", finished.stdout)
    assert found
    assert float(found[1]) > 0.9
