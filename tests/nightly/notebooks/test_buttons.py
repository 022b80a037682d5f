"""Buttons of a live view while a cell waits for the job: see ``buttons``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import run_to_end
from tests.support.paths import ROOT


def test_buttons_work_while_a_cell_waits(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default", "-m", "tests.support.notebook.buttons"]
    done = run_to_end(command, tmp_path, 280.0, {"PYTHONPATH": str(ROOT)}).ok()
    assert done.stdout.count(" ok\n") == 3, done.stdout
