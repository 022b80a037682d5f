"""The plugin that records failures, beside pytest-xdist as the nightly tests run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from workbench.nightly.failures import read

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
    found = {failure.test.rpartition("/")[2]: failure for failure in read(tmp_path / "failures.json")}
    assert {name: each.phase for name, each in found.items()} == {
        "test_not.py": "collection",
        "test_some.py::test_wrong": "call",
        "test_some.py::test_leaves": "teardown",
    }
    assert "assert 1 == 2" in found["test_some.py::test_wrong"].text
    assert "before" in found["test_some.py::test_wrong"].text
    assert "what_is_not_there" in found["test_not.py"].text
