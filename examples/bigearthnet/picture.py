"""Draw the batch table: F1 over the batch beside the published one, and F1 over the epochs.

draw(summary(report), report.constant_f1, Path("out/batch_table.png"))
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from examples.bigearthnet.findings import PUBLISHED, Line

COLOURS = {"sgd": "tab:blue", "lars": "tab:orange", "lamb": "tab:green"}
SHADES = {1: "0.1", 16: "tab:cyan", 32: "tab:blue", 64: "tab:purple"}


def draw(lines: list[Line], constant_f1: float, path: Path) -> None:
    """Write the picture, whose format is that of the path's suffix."""
    figure = Figure(figsize=(11, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _over_batches(left, lines, constant_f1)
    _over_epochs(right, lines, constant_f1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _over_batches(axes: Axes, lines: list[Line], constant_f1: float) -> None:
    ratios = list(PUBLISHED)
    axes.plot(ratios, [p.f1 for p in PUBLISHED.values()], "x--", color="0.5", label="published: SGD, BigEarthNet")
    for optimizer, colour in COLOURS.items():
        chosen = [line for line in lines if line.first.row.optimizer == optimizer]
        if not chosen:
            continue
        here = [line.first.row.ratio for line in chosen]
        means = np.array([line.f1 for line in chosen])
        ends = np.array([[min(line.f1s), max(line.f1s)] for line in chosen]).T
        axes.errorbar(
            here,
            means,
            yerr=np.abs(ends - means),
            fmt="o-",
            capsize=4,
            color=colour,
            label=f"here: {optimizer.upper()}",
        )
    axes.axhline(constant_f1, color="0.7", linestyle=":", label="always the same labels")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ratios, [f"{ratio} x" for ratio in ratios])
    axes.set(xlabel="global batch, in base batches", ylabel="micro-F1 on test patches", ylim=(0, 1))
    axes.set_title("F1 over the batch (bars: smallest and largest of the seeds)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")


def _over_epochs(axes: Axes, lines: list[Line], constant_f1: float) -> None:
    for line in lines:
        row, scores = line.first.row, np.mean([r.outcome.scores for r in line.results], axis=0)
        colour = SHADES.get(row.ratio, "0.5") if row.optimizer == "sgd" else COLOURS[row.optimizer]
        style = "-" if row.optimizer == "sgd" else "--"
        label = f"{row.optimizer.upper()}, batch {line.first.batch}"
        axes.plot(range(1, len(scores) + 1), scores, style, color=colour, label=label)
    axes.axhline(constant_f1, color="0.7", linestyle=":")
    axes.set(xlabel="epoch", ylabel="micro-F1 on test patches", ylim=(0, 1))
    axes.set_title("F1 over the epochs (mean of the seeds)", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
