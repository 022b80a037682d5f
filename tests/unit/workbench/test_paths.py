"""Tests that the workbench runs by name lie where it looks for them."""

from __future__ import annotations

import random

import pytest

from tests.support.paths import ROOT
from workbench.planted import DEFECTS
from workbench.stress.command import LOOPS
from workbench.versions import ENVIRONMENTS


def test_tests_of_stress_loops_exist() -> None:
    words = [word for loop in LOOPS for word in loop.command(random.Random(0)) if word.startswith("tests")]
    assert words
    assert not [word for word in words if not (ROOT / word).exists()]


def test_tests_of_other_versions_exist() -> None:
    words = [word for each in ENVIRONMENTS.values() for word in each.tests]
    assert not [word for word in words if not (ROOT / word).exists()]


@pytest.mark.parametrize("room", DEFECTS)
def test_a_planted_defect_has_its_line_and_its_tests(room: str) -> None:
    defect = DEFECTS[room]
    assert (ROOT / defect.path).read_text().count(defect.line) == 1
    assert defect.defect != defect.line
    assert all((ROOT / folder).exists() for folder in defect.tests)
