"""The contract of bindings over one of ours, in a job."""

from __future__ import annotations

from pathlib import Path

from tests.support import on_ranks
from tests.support.bindings.table import Row
from tests.support.frameworks import skip_without
from tests.support.paths import SUPPORT
from workbench.binding.contract import CASES


def check(row: Row, job: str, folder: Path) -> None:
    """Fail unless all ranks of a job of ``tests.support.on_ranks`` have passed all cases."""
    skip_without(row.name)
    found = on_ranks.report(job, folder, row.command(SUPPORT / "bindings" / "ranks.py", folder))
    on_ranks.check(found, job)
    assert list(found) == list(CASES)
