"""The backend of ``torch.distributed`` on two ranks: every check of ``tests/support/torch/process_groups.py``."""

from __future__ import annotations

from pathlib import Path

from tests.support.torch.group_reports import run_group_checks


def test_process_groups(tmp_path: Path) -> None:
    run_group_checks("2", tmp_path)
