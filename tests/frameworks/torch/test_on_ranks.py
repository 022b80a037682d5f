"""The checks of ``tests/support/torch/checks`` on two ranks, whose gradients are reduced where they lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.on_ranks import Report
from tests.support.torch.reports import check, of, report

__all__ = ["report"]

JOBS = ["2-where-they-lie"]


@pytest.mark.parametrize(("job", "checks"), of(*JOBS), scope="session")
def test_on_ranks(report: Callable[[str], Report], job: str, checks: str) -> None:
    check(report, job, checks)
