"""``farandole.jax`` on other numbers of ranks than in the gate, for longer, and its example."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.frameworks import skip_without
from tests.support.paths import ROOT, SUPPORT

skip_without("jax")

HERE = SUPPORT / "jax"


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_checks(launch: Any, ranks: int) -> None:
    lines = launch(ranks, HERE / "checks.py", deadline_s=580.0).ok().lines()
    assert len(lines) == ranks
    assert all("checks passed" in line for line in lines)


def test_calls_of_a_program_meet_by_name_in_whatever_order_they_run(launch: Any) -> None:
    assert launch(2, HERE / "stress.py", arguments=["200"], deadline_s=580.0).ok().lines() == ["equal"] * 2


def test_the_example_learns_and_waits_for_its_programs_before_it_leaves(launch: Any) -> None:
    """A worker that shuts down while programs are dispatched and not over takes nothing from the others."""
    finished = launch(2, ROOT / "examples" / "jax_digits.py", deadline_s=400.0).ok()
    found = re.search(r"test accuracy ([\d.]+) on 2 worker", finished.stdout)
    assert found
    assert float(found[1]) > 0.9
