"""Commands of the workbench start in any folder, as its workers do on other hosts; the package's wheel has none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.launching import run_to_end
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", ["attacks", "differential", "stress", "survival"])
def test_a_command_starts_in_any_folder(tmp_path: Path, name: str) -> None:
    finished = run_to_end([sys.executable, "-m", f"workbench.{name}", "--help"], tmp_path, 60.0).ok()
    assert f"python -m workbench.{name}" in finished.stdout


def test_tests_run_under_stalls(tmp_path: Path) -> None:
    """The tests replace a method of ``threading.Condition``, which stalls replace before them."""
    tests = ["-q", "-p", "no:cacheprovider", str(ROOT / "tests/unit/runtime/test_process_sets.py")]
    script = f"""
import pytest
from workbench.stress.stalls import Stalls, install
install(Stalls(1, share=0.5, longest_s=0.001))
raise SystemExit(pytest.main({tests}))
"""
    run_to_end([sys.executable, "-c", script], tmp_path, 60.0).ok()


def test_every_module_that_a_target_runs_exists() -> None:
    modules = re.findall(r"python -m (workbench[.\w]*)", (ROOT / "Makefile").read_text())
    paths = [ROOT.joinpath(*module.split(".")) for module in modules]
    assert paths
    assert not [path for path in paths if not (path / "__main__.py").exists() and not path.with_suffix(".py").exists()]


def test_the_wheel_has_the_package_alone() -> None:
    assert '\nwheel.packages = ["src/farandole"]\n' in (ROOT / "pyproject.toml").read_text()
