"""The checks for a machine with a GPU, as far as they go without one."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from tests.support.frameworks import LOADED_IF_THERE, lean
from tests.support.launching import run_to_end
from tests.support.paths import ROOT


def test_they_pass_on_a_cpu(tmp_path: Path) -> None:
    report = tmp_path / "gpu.md"
    command = [sys.executable, "-m", "workbench.gpu", "--dry-run", "--report", str(report)]
    environment = {**lean("torch", *LOADED_IF_THERE), "PYTHONPATH": str(ROOT)}
    run_to_end(command, tmp_path, 560, environment).ok()
    text = report.read_text()
    there = sum(find_spec(name) is not None for name in ("jax", "tensorflow"))
    assert text.count("| passed |") == 7 + there
    assert text.count("skipped: it needs a GPU") >= 2
    assert text.count("is not installed |") == 2 - there
    assert '{"farandole": ' in text
