"""``python -m workbench.nightly [SLICE ...]``: play slices; exit status 1 if one failed."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from workbench.nightly.choice import Change, choose
from workbench.nightly.playing import play
from workbench.nightly.slices import ROOT, SLICES

TOUCHED = "touched"
CHANGE_S = 4 * 3600
"""Commits within so many seconds before the last one are one change."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m workbench.nightly", description=__doc__)
    parser.add_argument("slices", nargs="*", metavar="SLICE", help="a name, or 'touched' (default: all)")
    parser.add_argument("--list", action="store_true", help="print the slices and what each is about")
    asked = parser.parse_args()
    if unknown := set(asked.slices) - SLICES.keys() - {TOUCHED}:
        parser.error(f"there is no slice {', '.join(sorted(unknown))}: use {', '.join(SLICES)}, or {TOUCHED}")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends running tests, too
    console = Console()
    if asked.list:
        console.print(_listed())
        return
    names = asked.slices or list(SLICES)
    if TOUCHED in names:
        chosen, why = choose(SLICES, last_change())
        console.print(f"the slice is {chosen}: {why}", soft_wrap=True)
        names = list(dict.fromkeys(chosen if name == TOUCHED else name for name in names))
    failed = [name for name in names if not play(name, console)]
    console.print(f"{len(names) - len(failed)} slices passed, {len(failed)} failed {' '.join(failed)}".rstrip())
    sys.exit(bool(failed))


def _listed() -> Table:
    table = Table("slice", "about", "and runs")
    for name, each in SLICES.items():
        table.add_row(name, "\n".join(each.about), "\n".join(" ".join(["python", *c[1:]]) for c in each.also))
    return table


def last_change() -> Change:
    """Change made by the commits of the last ``CHANGE_S``: lines by path; empty in a shallow clone."""
    at_s = int(_git("log", "-1", "--format=%ct"))
    base = _git("rev-list", "-1", "--first-parent", f"--before={at_s - CHANGE_S}", "HEAD")
    lines: dict[str, int] = {}
    if not base:
        return Change(at_s, lines)
    for row in _git("diff", "--numstat", "--no-renames", base, "HEAD").splitlines():
        added, removed, path = row.split("\t")
        lines[path] = sum(int(number) for number in (added, removed) if number.isdecimal())
    return Change(at_s, lines)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
