"""The plugin that records failures, beside pytest-xdist as the nightly tests run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.patience import PATIENCE_S
from workbench.nightly.failures import read
from workbench.nightly.playing import play_tests

TESTS = """
import pytest

@pytest.fixture
def breaks():
    yield
    assert not "the teardown"

def test_right(): pass
def test_wrong():
    print("before")
    assert 1 == 2
def test_leaves(breaks): pass
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_failures_are_written_with_all_that_pytest_prints(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_not.py").write_text("import what_is_not_there")
    command = [sys.executable, "-m", "pytest", "-p", "workbench.nightly.failures", "-n", processes]
    command += ["--failures", "failures.json", "--continue-on-collection-errors", "-p", "no:cacheprovider", "."]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=PATIENCE_S).returncode == 1
    run = read(tmp_path / "failures.json")
    assert (run.passed, run.skipped) == (2, 0)
    found = {failure.test.rpartition("/")[2]: failure for failure in run.failed}
    assert {name: each.phase for name, each in found.items()} == {
        "test_not.py": "collection",
        "test_some.py::test_wrong": "call",
        "test_some.py::test_leaves": "teardown",
    }
    assert "assert 1 == 2" in found["test_some.py::test_wrong"].text
    assert "before" in found["test_some.py::test_wrong"].text
    assert "what_is_not_there" in found["test_not.py"].text


FLAKY = """
import os, pathlib, pytest

HERE = pathlib.Path(__file__).parent

def once(name):
    # False the first time, and True from then on
    path = HERE / name
    is_again = path.exists()
    path.touch()
    return is_again

def test_that_passes(): pass
"""
PLAYED = {
    "passes": ("", True),
    "fails once": ("def test_a(): assert once('a')", True),
    "fails": ("def test_a(): assert 0", False),
    "fails once and is skipped alone": (
        "def test_a():\n    if once('a'): pytest.skip('no room')\n    assert 0",
        False,
    ),
    "fails once where pytest itself fails": ("def test_a(): assert once('a')", False),
}
FAILS_ITSELF = """
def pytest_sessionfinish(session):
    session.exitstatus = 3
"""


@pytest.mark.parametrize("what", PLAYED)
def test_a_slice_is_green_where_all_passed_or_what_failed_passes_alone(tmp_path: Path, what: str) -> None:
    text, expected = PLAYED[what]
    (tmp_path / "test_it.py").write_text(FLAKY + text)
    (tmp_path / "conftest.py").write_text(FAILS_ITSELF if "itself" in what else "")
    with open(tmp_path / "out", "w") as file:
        assert play_tests(tmp_path, Console(file=file, width=80), tmp_path) is expected
    assert ("flaky" in (tmp_path / "out").read_text()) is (what == "fails once")
