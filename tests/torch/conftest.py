"""Runs the files in ``checks/`` once per kind of job, and reports each file as a test of its own."""

from __future__ import annotations

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
OVERLAPPED = ("--overlap", "backward", "--bucket-bytes", "200")
JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "1": (1, ()),
    "2": (2, ()),
    "3": (3, ()),
    "4": (4, ()),
    "2-where-they-lie": (2, ("--bucket-bytes", "200")),
    "2-overlapped": (2, OVERLAPPED),
    "2-gloo": (2, ("--engine", "gloo")),
}
"""Number of ranks and options of ``farandole run``."""

DEADLINE_S = 150.0

Report: TypeAlias = dict[str, dict[int, str]]
"""Per check and rank: "" or what went wrong."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per file of checks and kind of job."""
    if "checks" in metafunc.fixturenames:
        metafunc.parametrize("job", JOBS, scope="session")
        metafunc.parametrize("checks", [path.stem for path in FILES])


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """What came of all checks in a kind of job; it runs when first asked for."""

    @cache
    def run(job: str) -> Report:
        target = tmp_path_factory.mktemp(f"checks-{job}")
        size, options = JOBS[job]
        command = [sys.executable, "-m", "farandole", "run", "-np", str(size), *options]
        done = subprocess.run(
            [*command, sys.executable, str(HERE / "ranks.py"), str(target), *map(str, FILES)],
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
