"""The checks in ``checks/`` on 1 to 4 ranks (``make large``: up to 16), through the real launcher."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path


def names(checks: str) -> list[str]:
    """The checks in a file."""
    tree = ast.parse((Path(__file__).parent / "checks" / f"{checks}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


def test_on_ranks(report: Callable[[str], dict[str, dict[int, str]]], job: str, checks: str) -> None:
    found = {name: report(job).get(f"{checks}.{name}", {}) for name in names(checks)}
    wrong = [f"{name} on rank {rank}: {text}" for name, by in found.items() for rank, text in by.items() if text]
    assert not wrong, "\n".join(wrong)
    size = int(job.partition("-")[0])
    unfinished = [name for name, by in found.items() if sorted(by) != list(range(size))]
    assert not unfinished, f"an earlier check failed, so these did not run: {unfinished}"
