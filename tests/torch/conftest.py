"""Runs the files in ``checks/`` once per number of ranks, and reports each check as a test of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

HERE = Path(__file__).parent
FILES = sorted((HERE / "checks").glob("*.py"))
SIZES = (1, 2, 3, 4)
DEADLINE_S = 150.0

Report: TypeAlias = dict[str, dict[int, str]]
"""Per check and rank: "" or what went wrong."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per check and number of ranks."""
    if "check" in metafunc.fixturenames:
        checks = [
            f"{path.stem}.{node.name}"
            for path in FILES
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
        ]
        metafunc.parametrize("size", SIZES, scope="session")
        metafunc.parametrize("check", checks)


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Report]:
    """What came of all checks on so many ranks; the job runs when first asked for."""

    @cache
    def run(size: int) -> Report:
        target = tmp_path_factory.mktemp(f"checks-{size}")
        command = [sys.executable, "-m", "farandole", "run", "-np", str(size), sys.executable, str(HERE / "ranks.py")]
        done = subprocess.run(
            [*command, str(target), *map(str, FILES)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=False,
        )
        found: Report = {}
        for path in sorted(target.glob("*.json")):
            for check, wrong in json.loads(path.read_text()).items():
                found.setdefault(check, {})[int(path.stem)] = wrong
        assert found, f"the job exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return found

    return run
