"""The checks of ``tests/support/torch/checks`` on 1 to 4 ranks, each engine, overlapped, and on two hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.on_ranks import Report
from tests.support.torch.reports import check, of, report

__all__ = ["report"]

JOBS = [
    "1",
    "2",
    "3-overlapped",
    "2-tcp",
    "4",
    "3-mpi",  # the contract alone, which calls all that an engine has
    "4-on-2-uneven-hosts-and-a-tree",  # of shared memory and TCP
    "2-on-2-hosts-overlapped",
    "4-on-2-hosts",
]


@pytest.mark.parametrize(("job", "checks"), of(*JOBS), scope="session")
def test_on_ranks(report: Callable[[str], Report], job: str, checks: str) -> None:
    check(report, job, checks)
