"""Tests that failed beside others run again, alone; those that then pass are reported as flaky."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.nightly.failures import FailedTest

TIMES = 2
MOST = 5
"""So many failures are no accident of a busy machine: with more, nothing is run again."""


@final
class AloneVerdict(enum.Enum):
    """Verdict on a test that failed beside others."""

    FLAKY = "flaky"
    FAILED = "failed"


@final
class Retried(msgspec.Struct, frozen=True):
    """A failure, its verdict, and the reason."""

    failure: FailedTest
    verdict: AloneVerdict
    reason: str


def retry(failures: Sequence[FailedTest], passes_alone: Callable[[str], bool]) -> list[Retried]:
    """Run each failed test ``TIMES`` times by ``passes_alone``: FLAKY if it passes each time.

    More than ``MOST`` failures are all FAILED without another run, and so is a file that cannot be collected.
    """
    if len(failures) > MOST:
        return [Retried(each, AloneVerdict.FAILED, f"one of {len(failures)}: none was run again") for each in failures]
    return [_retried(each, passes_alone) for each in failures]


def _retried(failure: FailedTest, passes_alone: Callable[[str], bool]) -> Retried:
    if failure.phase == "collection":
        return Retried(failure, AloneVerdict.FAILED, "could not be collected")
    for number in range(1, TIMES + 1):
        if not passes_alone(failure.test):
            return Retried(failure, AloneVerdict.FAILED, f"failed alone, too, in run {number} of {TIMES}")
    return Retried(failure, AloneVerdict.FLAKY, f"passed alone, {TIMES} times")


def report(retried: Sequence[Retried], console: Console) -> None:
    """Print a table of the failures, and the first failure of each flaky test as a whole."""
    if not retried:
        return
    table = Table("test", "verdict", "why", title="failed beside others", title_justify="left")
    for each in retried:
        table.add_row(Text(each.failure.test, overflow="fold"), each.verdict.value, each.reason)
    console.print(table)
    for each in retried:
        if each.verdict is AloneVerdict.FLAKY:
            console.rule(f"{each.verdict.value}: {each.failure.test} ({each.failure.phase})")
            console.print(Text(each.failure.text))
