"""What a stranger meets first: one version everywhere, targets that say what they do, documented options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.settings import KNOBS
from tests.support.launching import run_to_end
from tests.support.paths import ROOT


def version() -> str:
    """The version in pyproject.toml."""
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_the_version_is_the_same_everywhere(tmp_path: Path) -> None:
    import farandole

    assert farandole.__version__ == version()
    assert f"## {version()}" in (ROOT / "CHANGELOG.md").read_text()
    said = run_to_end([sys.executable, "-m", "farandole", "--version"], tmp_path, 30).ok()
    assert version() in said.stdout


def test_make_alone_says_what_there_is() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    for target in ("demo", "test", "lint", "bench", "native", "sanitize"):
        assert re.search(rf"^  {target} +\w", said.stdout, re.MULTILINE), f"no help for make {target}:\n{said.stdout}"


def test_torch_is_pinned() -> None:
    assert "\ntorch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
    for line in (ROOT / "Makefile").read_text().splitlines():
        assert "pip install" not in line or "-c constraints.txt" in line


def test_every_option_of_run_is_documented(tmp_path: Path) -> None:
    said = run_to_end([sys.executable, "-m", "farandole", "run", "--help"], tmp_path, 30).ok().stdout
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", said))
    assert options >= {flag for knob in KNOBS.values() for flag in (*knob.flags, *knob.off_flags)}
    assert not {option for option in options - {"--epochs"} if option not in page}  # --epochs: the example's own


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_says_how_to_run_it(example: Path) -> None:
    command = rf"farandole (run -np \d [-\w ]*python examples/|submit [^\"]*python examples/|search ){example.name}"
    assert re.search(command, example.read_text().split('"""')[1])
