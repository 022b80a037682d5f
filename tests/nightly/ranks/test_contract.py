"""The contract of bindings over each of ours, in all jobs of its line in ``table.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from farandole.testing.binding.contract import CASES
from tests.support import on_ranks
from tests.support.bindings.table import TABLE, Row
from tests.support.frameworks import skip_without
from tests.support.paths import SUPPORT

RANKS = SUPPORT / "bindings" / "ranks.py"


@pytest.mark.parametrize(("row", "job"), [pytest.param(r, j, id=f"{r.title}-{j}") for r in TABLE for j in r.jobs])
def test_a_binding_keeps_the_contract(row: Row, job: str, tmp_path: Path) -> None:
    skip_without(row.name)
    found = on_ranks.report(job, tmp_path, row.command(RANKS, tmp_path))
    on_ranks.check(found, job)
    assert list(found) == list(CASES)
