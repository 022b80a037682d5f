"""Engines of IPython Parallel as ranks, in a real kernel: see ``checks``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import run_to_end
from tests.support.paths import ROOT

TIMES = "10"


def test_ranks_in_a_kernel(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default", "-m", "tests.support.notebook.checks", "--times", TIMES]
    done = run_to_end(command, tmp_path, 280.0, {"PYTHONPATH": str(ROOT)}).ok()
    assert done.stdout.count(" ok ") == 18, done.stdout
