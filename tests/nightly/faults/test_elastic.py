"""An elastic job of each binding, one of whose workers is killed in the middle of a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.bindings.table import TABLE, Row
from tests.support.frameworks import skip_without
from tests.support.paths import SUPPORT
from workbench.binding.elastic_job import problems

WORKER = SUPPORT / "bindings" / "elastic_worker.py"
ELASTIC = ["--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120"]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.title) for row in TABLE])
def test_a_worker_is_killed_another_one_comes_and_nobody_can_tell(row: Row, launch: Any, tmp_path: Path) -> None:
    skip_without(row.name)
    finished = launch(2, WORKER, options=ELASTIC, arguments=[str(tmp_path), row.title], environment=row.lean).ok()
    assert problems(tmp_path, size=2) == [], finished.stderr


def test_a_state_that_forgets_something_is_found(launch: Any, tmp_path: Path) -> None:
    launch(2, WORKER, options=ELASTIC, arguments=[str(tmp_path), "broken"]).ok()
    assert any(problem.startswith("sums of w are") for problem in problems(tmp_path, size=2))
