"""What a stranger meets first: one version everywhere, targets that say what they do, documented options."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from farandole.settings import KNOBS
from tests.support.launching import run_to_end
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from workbench.install import read_project, requirements


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
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    for target in ("demo", "test", "lint", "bench", "native", "sanitize"):
        assert re.search(rf"^  {target} +\w", said.stdout, re.MULTILINE), f"no help for make {target}:\n{said.stdout}"


def set_up(goal: str, tmp_path: Path) -> tuple[list[str], set[str], str]:
    """Extras and packages that ``make`` would install in an empty environment, and all commands that it would run."""
    words = ["make", "--no-print-directory", "--dry-run", *goal.split(), f"VENV={tmp_path}/venv"]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    found = re.search(r"workbench\.install (?:--compile )?--extras (\S+) (.*)", said)
    assert found
    return found[1].split(","), {*shlex.split(found[2])}, said


def named(lines: Iterable[str]) -> set[str]:
    """The names of packages in requirements."""
    return {re.split(r"[^\w-]", line)[0] for line in lines}


def imported(example: Path) -> set[str]:
    """Packages that an example imports, beside the standard library and Farandole; with the backend of its Keras."""
    text = example.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in names} - {"farandole", "horovod", *sys.stdlib_module_names}
    distributions = {"sklearn": "scikit-learn", "tensorflow": "tensorflow-cpu"}
    return {distributions.get(top, top) for top in tops} | {*re.findall(r'"KERAS_BACKEND", "(\w+)"', text)}


@pytest.mark.parametrize("framework", ["torch", "keras", "tensorflow", "jax"])
def test_a_demo_installs_what_it_imports_and_nothing_else(framework: str, tmp_path: Path) -> None:
    extras, packages, said = set_up(f"demo FRAMEWORK={framework}", tmp_path)
    project = read_project()
    installed = named(requirements(project, extras)) | named(packages)
    [example] = {*re.findall(r"examples/\w+\.py", said)}
    needed = imported(ROOT / example)
    tools = {"scikit-build-core", "nanobind", "cmake", "ninja"}  # of the native core
    assert needed <= installed
    assert installed - needed <= named(requirements(project, [framework])) | tools
    assert "live.js" not in said


def test_everything_else_installs_all_there_is(tmp_path: Path) -> None:
    for goal in ("test", "lint", "setup", "native", "demo test"):
        extras, packages, _ = set_up(goal, tmp_path)
        assert {*extras} == {"torch", "jax", "keras", "data", "dev"}
        assert "tensorflow-cpu" in packages


def test_an_unknown_framework_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    said = subprocess.run(
        ["make", "demo", "FRAMEWORK=abacus", f"VENV={tmp_path}/venv"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert said.returncode == 2
    assert "FRAMEWORK=abacus: use torch, keras, tensorflow or jax" in said.stderr
    assert not [*tmp_path.iterdir()]


def test_torch_is_pinned() -> None:
    assert "\ntorch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
    for line in (ROOT / "Makefile").read_text().splitlines():
        assert "pip install" not in line or "-c constraints.txt" in line or "--no-index" in line  # nothing is fetched


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
