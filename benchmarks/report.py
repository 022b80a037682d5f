"""Tables for people, JSON for programs, one picture."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from benchmarks.measure import Row, Sample, Table, Verdict


def show(table: Table, console: Console) -> None:
    """Print one table: medians with their spread, then ratios with targets."""
    console.print(f"\n[bold]{table.title}[/bold] ({table.unit}: median ± half the quartile distance)")
    grid = Grid()
    for i, name in enumerate(_columns(table)):
        grid.add_column(name, justify="right" if i else "left", no_wrap=True)
    grid.add_column("what follows (target)", no_wrap=True)
    for row in table.rows:
        parts = [_coloured(verdict) for verdict in row.verdicts]
        grid.add_row(*_cells(table, row), "   ".join(parts))
    console.print(grid)


def markdown(tables: list[Table]) -> str:
    """The same tables as a page, for a README."""
    lines = [f"{_machine()['cpu']}, {_machine()['cores']} cores. Medians ± half the distance of the quartiles."]
    for table in tables:
        columns = [*_columns(table), "what follows (target)"]
        lines += ["", f"**{table.title}** ({table.unit})", "", _line(columns), _line(["---"] * len(columns))]
        lines += [_line([*_cells(table, row), "; ".join(map(_plain, row.verdicts))]) for row in table.rows]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _columns(table: Table) -> list[str]:
    return ["", *dict.fromkeys(name for row in table.rows for name in row.samples)]


def _cells(table: Table, row: Row) -> list[str]:
    return [row.what, *(_cell(row.samples.get(name)) for name in _columns(table)[1:])]


def _cell(sample: Sample | None) -> str:
    return "" if sample is None else f"{significant(sample.median)} ±{100 * sample.spread:.0f}%"


def _plain(verdict: Verdict) -> str:
    text = f"{significant(verdict.value)} {verdict.unit}"
    return text if verdict.passed is None else f"{text} ({verdict.target} {'pass' if verdict.passed else 'FAIL'})"


def _coloured(verdict: Verdict) -> str:
    return _plain(verdict).replace("pass", "[green]pass[/green]").replace("FAIL", "[red]FAIL[/red]")


def significant(value: float) -> str:
    """Three digits that mean something: 0.0123, 1.23, 12.3, 12300."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def summary(tables: list[Table]) -> tuple[int, int]:
    """How many targets were reached, of how many."""
    verdicts = [v.passed for table in tables for row in table.rows for v in row.verdicts if v.passed is not None]
    return sum(verdicts), len(verdicts)


def save(tables: list[Table], folder: Path) -> None:
    """Write everything measured, and where: ``bench.json`` for programs, ``bench.md`` for people."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = {"machine": _machine(), "tables": [table.plain() for table in tables]}
    (folder / "bench.json").write_text(json.dumps(everything, indent=1))
    (folder / "bench.md").write_text(markdown(tables))


def _machine() -> dict[str, str | int | None]:
    return {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
