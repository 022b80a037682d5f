"""The backend of ``torch.distributed`` on one rank and on three, and over TCP, whose engine does not check calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.torch.group_reports import run_group_checks


@pytest.mark.parametrize("job", ["1", "3", "2-tcp"])
def test_process_groups(tmp_path: Path, job: str) -> None:
    run_group_checks(job, tmp_path)
