"""Search as a picture, drawn by matplotlib (``pip install 'farandole[plot]'``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.largebatch.picture import new_figure, written
from farandole.search.api import SearchedTrial, SearchResult
from farandole.search.space import Parameter, Range, Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"complete": "tab:green", "pruned": "tab:gray", "paused": "tab:gray", "failed": "tab:red"}
BEST = "tab:orange"
MOST_PARAMETERS = 4
"""Number of hyper-parameters that are drawn."""


def draw_search(result: SearchResult, space: Space, path: str | Path | None) -> Figure:
    """Draw the values of each trial by epoch, and its last value over each of the first hyper-parameters."""
    names = list(space.parameters)[:MOST_PARAMETERS]
    figure = new_figure(10, 6)
    parts: Any = figure.subfigures(2, 1, height_ratios=(3, 2))
    above, below = parts
    whole = result.epochs_of_all
    _draw_curves(above.subplots(), result, whole)
    shown = [trial for trial in result.trials if trial.value is not None and math.isfinite(trial.value)]
    row = below.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(row, names, strict=True):
        _draw_parameter(axis, name, space.parameters[name], shown, result)
        axis.grid(alpha=0.3)
    row[0].set_ylabel("last value")
    return written(figure, path)


def _colour(trial: SearchedTrial, result: SearchResult) -> str:
    is_best = result.best is not None and trial.number == result.best.number
    return BEST if is_best else COLOURS.get(trial.phase, "tab:gray")


def _draw_curves(axis: Any, result: SearchResult, whole: int) -> None:
    labels: set[str] = set()
    for trial in sorted(result.trials, key=lambda each: each.phase == "complete"):
        colour = _colour(trial, result)
        name = f"the best: trial {trial.number}" if colour == BEST else trial.phase
        label = None if name in labels else name
        labels.add(name)
        epochs = list(trial.values)
        values = [trial.values[epoch] for epoch in epochs]
        axis.plot(epochs, values, "-", color=colour, lw=1.5 if trial.phase == "complete" else 0.8, label=label)
        axis.plot(epochs[-1:], values[-1:], "o", ms=4, color=colour)
    share = f"{result.epochs} of {whole} epochs" if whole else f"{result.epochs} epochs"
    axis.set(xlabel="epochs", ylabel="value", xscale="log", title=f"{len(result.trials)} trials: {share}")
    if all(value > 0 for trial in result.trials for value in trial.values.values()):
        axis.set_yscale("log")
    ends = sorted({max(trial.values) for trial in result.trials if trial.values})
    axis.set_xticks(ends, map(str, ends))
    axis.xaxis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _draw_parameter(
    axis: Any, name: str, parameter: Parameter, trials: Sequence[SearchedTrial], result: SearchResult
) -> None:
    choices = [] if isinstance(parameter, Range) else list(parameter.choices)
    for trial in trials:
        value = trial.parameters[name]
        place = choices.index(value) if choices else value
        axis.plot([place], [trial.value], "o", ms=4, color=_colour(trial, result))
    axis.set(xlabel=name)
    if choices:
        axis.set_xticks(range(len(choices)), map(str, choices))
    if isinstance(parameter, Range) and parameter.log:
        axis.set_xscale("log")
    if all((trial.value or 0.0) > 0 for trial in trials):
        axis.set_yscale("log")
