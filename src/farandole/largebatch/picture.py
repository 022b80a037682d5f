"""Schedules and advice as pictures, drawn by matplotlib (``pip install 'farandole[plot]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from farandole.largebatch.goodput import Prospect

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Curves(NamedTuple):
    """Learning rate and global batch over the epochs; the first ``warm`` epochs are the warm-up."""

    title: str
    epochs: list[float]
    rates: list[float]
    batches: list[int]
    warm: float
    end: float


def draw_curves(curves: Curves, path: str | Path | None) -> Figure:
    """Draw the rate over the epochs, and the batch where it changes."""
    figure = new_figure()
    axis: Any = figure.subplots()
    epochs, batches, warm = curves.epochs, curves.batches, curves.warm
    (line,) = axis.plot(epochs, curves.rates, color="tab:blue", label="learning rate")
    lines = [line]
    if min(batches) < max(batches):
        other = axis.twinx()
        (line,) = other.plot(epochs, batches, color="tab:orange", ls="--", label="global batch")
        other.set(ylabel="samples in a step", ylim=(0, 1.05 * max(batches)))
        lines.append(line)
    if warm:
        axis.axvspan(0, warm, color="tab:gray", alpha=0.15, lw=0)
        axis.text(warm, 0.02, " warm-up", transform=axis.get_xaxis_transform(), ha="left", va="bottom", fontsize=8)
    axis.set(xlabel="epoch", ylabel="learning rate", xlim=(0, curves.end), ylim=(0, None))
    axis.set_title(curves.title)
    axis.grid(alpha=0.3)
    axis.legend(handles=lines, loc="center right")
    return written(figure, path)


def draw_advice(prospects: Sequence[Prospect], recommended: int, low: float, path: str | Path | None) -> Figure:
    """Draw time to the end, with its bounds, and samples to the end, over the number of workers.

    ``low``: lower bound of the critical batch.
    """
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    workers = [p.workers for p in prospects]
    unit, seconds = _unit(max(p.slowest_s for p in prospects))
    slow, fast = ([getattr(p, name) / seconds for p in prospects] for name in ("slowest_s", "fastest_s"))
    left.fill_between(workers, fast, slow, color="tab:blue", alpha=0.2, lw=0, label="noise scale at its bounds (95 %)")
    left.plot(workers, [p.seconds / seconds for p in prospects], "o-", ms=3, color="tab:blue", label="predicted")
    left.set(ylabel=unit, title="time of the training", ylim=(0, None))
    right.plot(workers, [p.samples / 1e6 for p in prospects], "o-", ms=3, color="tab:orange", label="predicted")
    right.set(ylabel="million samples", title="samples of the training", ylim=(0, None))
    for axis in (left, right):
        axis.axvline(recommended, color="tab:green", label=f"recommended: {recommended}")
        _mark_critical(axis, prospects, low)
        axis.set(xlabel="workers", xlim=(0.5, workers[-1] + 0.5))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return written(figure, path)


def _mark_critical(axis: Any, prospects: Sequence[Prospect], low: float) -> None:
    """Mark the numbers of workers whose batch is above the lower bound of the critical batch."""
    for before, after in pairwise(prospects):
        if before.batch <= low < after.batch:
            label, begin, end = "batch above the lower bound", before.workers + 0.5, len(prospects) + 0.5
            axis.axvspan(begin, end, color="tab:red", alpha=0.08, lw=0, label=label)


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 7200:
        return "hours", 3600.0
    return ("minutes", 60.0) if seconds >= 120 else ("seconds", 1.0)


def new_figure(width: float = 8, height: float = 4) -> Figure:
    """A figure with this size in inches; raises ``ModuleNotFoundError`` that names the package to install."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a picture needs matplotlib, which is not installed here: pip install 'farandole[plot]'", name="matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def written(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written to ``path`` if it is given."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure
