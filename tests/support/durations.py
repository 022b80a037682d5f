"""How long each file of tests took, so that those that take long begin.

make durations      # runs the gate and writes tests/durations.json
"""

from __future__ import annotations

import json
from collections import Counter
from typing import final

import pytest

from tests.support.paths import TESTS

FILE = TESTS / "durations.json"
UNKNOWN_S = 0.0
"""Files of less than a second are not recorded."""


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by what was recorded of their files; files keep their order inside."""
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    items.sort(key=lambda item: -recorded.get(_name(item.nodeid), UNKNOWN_S))


def record(config: pytest.Config) -> None:
    """Write ``FILE`` at the end of the run, where ``--record-durations`` asks for it."""
    if config.getoption("--record-durations", default=False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(), "durations")


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


@final
class _Recorder:
    def __init__(self) -> None:
        self._seconds = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_name(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
        recorded |= {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        there = {name: recorded[name] for name in sorted(recorded) if (FILE.parent / name).exists()}
        FILE.write_text(json.dumps({n: s for n, s in there.items() if s >= 1}, indent=0) + "\n")
