"""Searches whose workers are engines of IPython Parallel."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.launching import run_to_end


def test_engines_search_die_and_are_given_back(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "default", "-m", "tests.support.search.search_engines"]
    done = run_to_end(command, tmp_path, 240.0, {"IPYTHONDIR": str(tmp_path / "ipython"), "TMPDIR": str(tmp_path)}).ok()
    assert "which has died" in done.stderr
