"""Every snippet in README.md and docs/ runs, and shows what it says.

A fenced block says after its language what it is:

    python run=2        part of the page's program, which runs on two ranks; all such blocks of a page are one script
    bash run            commands, run in an empty folder beside a copy of examples/
    text output         lines that what ran just before (the page's program, or the commands above) must have printed

Other Python blocks must compile, and what they import from here must exist. Links between pages must lead somewhere.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import final

import pytest

from tests.conftest import Finished, Launch, run_to_end

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / n for n in ("CONTRIBUTING.md", "ARCHITECTURE.md")),
]
FENCE = re.compile(r"^```(\w+)?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


@final
@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what it says of itself, its text and the line where the text begins."""

    language: str
    role: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    source = page.read_text()
    return [
        Block(match[1] or "", match[2].strip(), match[3], source[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(source)
    ]


def expected_after(page: Path, chosen: list[Block]) -> list[str]:
    """The lines of the ``text output`` blocks that directly follow the chosen ones."""
    everything = blocks(page)
    following = [everything[i + 1] for i, block in enumerate(everything[:-1]) if block in chosen]
    return [line for b in following if b.language == "text" and b.role == "output" for line in b.text.splitlines()]


def check_output(finished: Finished, expected: list[str]) -> None:
    """Every expected line was printed; ``...`` in it stands for anything."""
    printed = finished.stdout + finished.stderr
    for line in filter(None, map(str.strip, expected)):
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert re.search(pattern, printed), f"not printed: {line}\n--- printed:\n{printed}"


@by_name
def test_python_of_a_page_compiles(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile("\n" * block.line + block.text, str(page), "exec")


def _has(module: ModuleType, name: str) -> bool:
    """True for what is in a module, for a module in a package, and for all of it."""
    is_package = hasattr(module, "__path__")
    return (
        name == "*"
        or hasattr(module, name)
        or (is_package and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)
    )


@by_name
def test_imports_of_a_page_exist(page: Path) -> None:
    text = [block.text for block in blocks(page) if block.language == "python"]
    nodes = [node for block in text for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    for module, names in ((node.module or "", node.names) for node in nodes):
        if module.partition(".")[0] in ("farandole", "workbench"):
            found = importlib.import_module(module)
            missing = [alias.name for alias in names if not _has(found, alias.name)]
            assert not missing, f"{module} has no {', '.join(missing)}"


@by_name
def test_programs_of_a_page_run(page: Path, launch: Launch) -> None:
    chosen = [b for b in blocks(page) if b.language == "python" and b.role.startswith("run=")]
    if not chosen:
        return
    (np,) = {int(block.role.removeprefix("run=")) for block in chosen}
    script = ""
    for block in chosen:  # each at its own line of the page, so that a traceback names that line
        script += "\n" * (block.line - script.count("\n")) + block.text
    check_output(launch(np, script).ok(), expected_after(page, chosen))


@by_name
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, command in (("farandole", "-m farandole "), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
        (bin_ / name).chmod(0o755)
    path = {"PATH": f"{bin_}:{os.environ['PATH']}"}
    for block in blocks(page):
        if block.language == "bash" and block.role == "run":
            finished = run_to_end(["bash", "-euo", "pipefail", "-c", block.text], tmp_path, 120.0, path)
            check_output(finished.ok(), expected_after(page, [block]))


@by_name
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", page.read_text()))
    dead = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not dead


def test_generated_parts_are_up_to_date() -> None:
    from docs.generate import filled

    stale = [page.name for page in PAGES if filled(page.read_text()) != page.read_text()]
    assert not stale, f"run: python docs/generate.py  (out of date: {stale})"
