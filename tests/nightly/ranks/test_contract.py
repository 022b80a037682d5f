"""The contract of bindings over each of ours, on every engine and number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bindings.contract import check
from tests.support.bindings.table import TABLE, row_of

ENGINES = ("1", "2-tcp", "3-mpi", "4", "4-on-2-uneven-hosts-and-a-tree")
"""Every engine of host memory: none, tcp, mpi, shm, hybrid."""
JOBS = [("numpy", job) for job in ENGINES] + [(row.title, job) for row in TABLE[1:] for job in ("2", "3")]


@pytest.mark.parametrize(("title", "job"), JOBS)
def test_a_binding_keeps_the_contract(title: str, job: str, tmp_path: Path) -> None:
    check(row_of(title), job, tmp_path)
