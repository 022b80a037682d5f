"""Runs the checks of process groups, in processes that have PyTorch's compiler, which DDP and FSDP2 ask for."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import on_ranks
from tests.support.frameworks import lean

HERE = Path(__file__).parent


def run_group_checks(job: str, target: Path) -> None:
    """Fail unless all checks pass on all ranks of a kind of job."""
    ranks = [sys.executable, str(HERE / "ranks.py"), str(target), str(HERE / "process_groups.py")]
    found = on_ranks.report(job, target, ranks, environment={**lean("torch"), "OMP_NUM_THREADS": "1"})
    assert len(found) > 5
    on_ranks.check(found, job)
