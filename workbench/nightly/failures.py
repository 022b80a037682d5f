"""Plugin of pytest that writes the failures, and the number of passed tests, to a file.

pytest -p workbench.nightly.failures --failures FILE
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import final

import msgspec
import pytest


@final
class FailedTest(msgspec.Struct, frozen=True):
    """A test that failed: its node id, the phase, and pytest's whole report."""

    test: str
    phase: str
    text: str


@final
class TestRun(msgspec.Struct, frozen=True):
    """Run of pytest: the tests that failed, each once with its first failure, and how many passed and were skipped."""

    failed: list[FailedTest] = []
    passed: int = 0
    skipped: int = 0


def read(path: Path) -> TestRun:
    """Read the file of a run; an empty run if pytest has not written it."""
    return msgspec.json.decode(path.read_bytes(), type=TestRun) if path.exists() else TestRun()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--failures``."""
    parser.addoption("--failures", type=Path, help="file for the failures, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record, in the process that prints the reports."""
    if (path := config.getoption("--failures")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(path), "failures")


@final
class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path, self._failed = path, dict[str, FailedTest]()
        self._count = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count[report.outcome] += report.when == "call" or report.skipped
        self._take(report, str(report.when))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._take(report, "collection")

    def _take(self, report: pytest.TestReport | pytest.CollectReport, phase: str) -> None:
        if report.failed and report.nodeid not in self._failed:
            sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
            self._failed[report.nodeid] = FailedTest(report.nodeid, phase, report.longreprtext + sections)

    def pytest_sessionfinish(self) -> None:
        run = TestRun(list(self._failed.values()), self._count["passed"], self._count["skipped"])
        self._path.write_bytes(msgspec.json.encode(run))
