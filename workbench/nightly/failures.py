"""Plugin of pytest that writes what failed to a file: ``pytest -p workbench.nightly.failures --failures FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import final

import msgspec
import pytest


@final
class FailedTest(msgspec.Struct, frozen=True):
    """A test that failed: its node id, in which phase, and all that pytest prints of it."""

    test: str
    phase: str
    text: str


def read(path: Path) -> list[FailedTest]:
    """The failures in a file, one for each test; none where pytest has not come to write it."""
    if not path.exists():
        return []
    found = msgspec.json.decode(path.read_bytes(), type=list[FailedTest])
    return list({failure.test: failure for failure in reversed(found)}.values())[::-1]


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
        self._path, self._found = path, list[FailedTest]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._take(report, str(report.when))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._take(report, "collection")

    def _take(self, report: pytest.TestReport | pytest.CollectReport, phase: str) -> None:
        if not report.failed:
            return
        sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
        self._found.append(FailedTest(report.nodeid, phase, report.longreprtext + sections))
        self._path.write_bytes(msgspec.json.encode(self._found))
