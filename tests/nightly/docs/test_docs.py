"""Every snippet in README.md and docs/ runs, and shows what it says.

A fenced block says after its language what it is:

    python run=2        part of the page's program, which runs on two ranks; all such blocks of a page are one script
    python run=2 mxnet  the same, run in the environment of MXNet; skipped where `make mxnet` has made none
    bash run            commands, run in an empty folder beside a copy of examples/
    bash run spark      the same, where Spark is installed
    bash run models     the same, where the libraries of farandole.models are
    text output         lines that what ran just before (the page's program, or the commands above) must have printed

Other Python blocks must compile, and what they import from here must exist. Links between pages must lead somewhere.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import final

import pytest

from tests.support.frameworks import LOADED_IF_THERE, lean
from tests.support.launching import Finished, Launch, run_to_end
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S

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


def test_imports_of_all_pages_exist() -> None:
    """In a process of its own, as pages import all frameworks."""
    wanted: list[tuple[str, str, list[str]]] = []
    for page in PAGES:
        text = [block.text for block in blocks(page) if block.language == "python"]
        nodes = [node for block in text for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
        wanted += [(str(page), node.module or "", [alias.name for alias in node.names]) for node in nodes]
    ours = [each for each in wanted if each[1].partition(".")[0] in ("farandole", "workbench")]
    command = [sys.executable, "-m", "tests.support.imported_names"]  # as a file it would find tests/jax for jax
    done = subprocess.run(
        command,
        input=json.dumps(ours),
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE_S,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@by_name
def test_programs_of_a_page_run(page: Path, launch: Launch, request: pytest.FixtureRequest) -> None:
    chosen = [b for b in blocks(page) if b.language == "python" and b.role.startswith("run=")]
    if not chosen:
        return
    ((np, *where),) = {tuple(block.role.removeprefix("run=").split()) for block in chosen}
    python = request.getfixturevalue("mxnet_python") if where == ["mxnet"] else sys.executable
    script = ""
    for block in chosen:  # each at its own line of the page, so that a traceback names that line
        script += "\n" * (block.line - script.count("\n")) + block.text
    needed = [
        name for name in LOADED_IF_THERE if re.search(rf"^import {name}\b|farandole\.{name}\b", script, re.MULTILINE)
    ]
    needed += ["torch"] if "torch.distributed" in script else []  # whose DDP asks the compiler whether it is used
    finished = launch(int(np), script, python=python, environment=lean(*needed))
    check_output(finished.ok(), expected_after(page, chosen))


@by_name
def test_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, command in (("farandole", "-m farandole "), ("python", "")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {command}"$@"\n')
        (bin_ / name).chmod(0o755)
    path = {"PATH": f"{bin_}:{os.environ['PATH']}"}
    there = {
        "run": True,
        "run spark": find_spec("pyspark") is not None and shutil.which("java") is not None,
        "run models": find_spec("safetensors") is not None and find_spec("huggingface_hub") is not None,
    }
    chosen = [block for block in blocks(page) if block.language == "bash" and block.role in there]
    for block in chosen:
        if there[block.role]:
            finished = run_to_end(["bash", "-euo", "pipefail", "-c", block.text], tmp_path, 240.0, path)
            check_output(finished.ok(), expected_after(page, [block]))
    for name, make in (("run spark", "make spark"), ("run models", "make science")):
        if not there[name] and any(block.role == name for block in chosen):
            pytest.skip(f"all but the blocks of '{name}' was run, for which packages are missing: {make}")


@by_name
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", page.read_text()))
    dead = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not dead


def test_generated_parts_are_up_to_date() -> None:
    from docs.generate import filled

    stale = [page.name for page in PAGES if filled(page.read_text()) != page.read_text()]
    assert not stale, f"run: python docs/generate.py  (out of date: {stale})"
