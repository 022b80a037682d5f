"""Tables of an outlook, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from farandole.largebatch.advice import duration, significant
from farandole.predict.checking import Check, last, line
from farandole.predict.headlines import Headline, fitted
from farandole.predict.model import COMMUNICATION, INPUT, Model
from farandole.predict.outlook import Expectation, Outlook

WIDTH = 80


def show(found: Outlook, model: Model, check: Check | None, changes: Sequence[str] = ()) -> None:
    """Print an outlook."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    measured = ", ".join(f"{ranks:,.0f}" for ranks in dict.fromkeys(o.ranks for o in model.steps))
    changed = "".join(f", if {each}" for each in changes)
    unit = 1.0 if max(row.step.middle for row in found.rows) >= 1 else 1e-3
    console.print(f"{'Seconds' if unit == 1 else 'Milliseconds'} of a step{changed}; measured on {measured} ranks")
    console.print(_steps(found.rows, model, changes, unit))
    if any(row.training for row in found.rows):
        console.print(_trainings(found.rows))
    console.print(found.advice)
    if check:
        console.print(str(check))
    for caveat in found.caveats:
        console.print(f"- {caveat}")


def _steps(rows: Sequence[Expectation], model: Model, changes: Sequence[str], unit: float) -> Table:
    """Steps, with their waits in percent of the step, and the two oracles."""
    table = _table("ranks", "hosts", "step", "90 %", "effic.", "comm", "slow", "input", "last", "line")
    for row in rows:
        total = sum(row.parts.values())
        parts = {
            "comm": sum(row.parts[name] for name in (*COMMUNICATION, "control")),
            "slow": row.parts["stragglers"],
            "input": sum(row.parts[name] for name in INPUT),
        }
        hidden = () if model.has_input else ("input",)
        shares = ["?" if name in hidden else f"{100 * each / total:.0f}%" for name, each in parts.items()]
        low, middle, high = (f"{each / unit:.4g}" for each in row.step)
        known = (middle, f"{low}-{high}", f"{row.efficiency.middle:.0%}")
        is_beyond = row.ranks > model.most and not changes  # the oracles only extrapolate
        oracles = (f"{oracle(model.steps, row.ranks) / unit:.4g}" if is_beyond else "" for oracle in (last, line))
        cells = known if row.is_known else ("unknown", known[1], "?")
        table.add_row(f"{row.ranks}", f"{row.hosts}", *cells, *shares, *oracles)
    return table


def _trainings(rows: Sequence[Expectation]) -> Table:
    table = _table("ranks", "batch", "epochs", "time", "90 %", "node-hours")
    for row in rows:
        if row.training and row.epochs:
            low, high = duration(row.training.low), duration(row.training.high)
            cells = (f"{row.epochs.middle:.3g}", duration(row.training.middle), f"{low} to {high}")
            table.add_row(f"{row.ranks}", significant(row.batch), *cells, f"{row.node_hours:,.3g}")
    return table


def show_published(checks: Sequence[tuple[str, Check, Sequence[Check]]], rows: Sequence[Headline]) -> None:
    """Print checks of tables, at an eighth and at all cuts, and headlines beside the cost model's values."""
    hidden, sigma = fitted()
    console = Console(width=WIDTH, highlight=False, markup=False)
    told = f"{hidden:.0%} of the backward pass hides communication, and a rank's step varies by {sigma:.1%}"
    for name, check, cuts in checks:
        held, points = sum(each.held for each in cuts), sum(len(each.points) for each in cuts)
        console.print(f"{name}. {check} At all cuts: {held} of {points} points within their interval.")
    console.print(f"\nPublished headlines, beside one cost model: {told} (fitted to Horovod's three)")
    table = _table("", "ranks", "published", "says", "with a flat coordinator")
    for row in rows:
        table.add_row(row.name, f"{row.ranks:,}", *(f"{each:.1%}" for each in (row.published, row.says, row.flat)))
    console.print(table)


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    return table
