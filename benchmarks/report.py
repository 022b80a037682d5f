"""Tables for people, JSON for programs, one picture."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from benchmarks.measure import Row, Sample, Table


def show(table: Table, console: Console) -> None:
    """Print one table: medians with their spread, then ratios with targets."""
    console.print(f"\n[bold]{table.title}[/bold] ({table.unit}: median ± half the quartile distance)")
    grid = Grid()
    grid.add_column("", no_wrap=True)
    names = list(dict.fromkeys(name for row in table.rows for name in row.samples))
    for name in names:
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("what follows (target)", no_wrap=True)
    for row in table.rows:
        grid.add_row(row.what, *(_cell(row.samples.get(name)) for name in names), _verdicts(row))
    console.print(grid)


def _cell(sample: Sample | None) -> str:
    return "" if sample is None else f"{significant(sample.median)} ±{100 * sample.spread:.0f}%"


def _verdicts(row: Row) -> str:
    parts = []
    for verdict in row.verdicts:
        text = f"{significant(verdict.value)} {verdict.unit}"
        if verdict.passed is not None:
            colour, word = ("green", "pass") if verdict.passed else ("red", "FAIL")
            text += f" ({verdict.target} [{colour}]{word}[/{colour}])"
        parts.append(text)
    return "   ".join(parts)


def significant(value: float) -> str:
    """Three digits that mean something: 0.0123, 1.23, 12.3, 12300."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def summary(tables: list[Table]) -> tuple[int, int]:
    """How many targets were reached, of how many."""
    verdicts = [v.passed for table in tables for row in table.rows for v in row.verdicts if v.passed is not None]
    return sum(verdicts), len(verdicts)


def save(tables: list[Table], path: Path) -> None:
    """Write everything measured, and where, as JSON."""
    machine = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "tables": [table.plain() for table in tables]}, indent=1))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
