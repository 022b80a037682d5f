"""The figure of error against horizon: baselines, network, limit, and climatology as the end of all forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from examples.common.reproduce import Results

LOOKS: dict[str, dict[str, Any]] = {
    "persistence": {"color": "#888888", "marker": "s", "linestyle": "--"},
    "linear": {"color": "#d55e00", "marker": "^", "label": "linear autoregression"},
    "LSTM": {"color": "#0072b2", "marker": "o", "linewidth": 2.2, "label": "LSTM (own)"},
    "true model": {"color": "#009e73", "marker": "D", "linestyle": ":", "label": "true model, observed state"},
    "climatology": {"color": "#000000", "linewidth": 1.0},
}
TITLES = {"lorenz96": "Lorenz-96: a network earns its keep", "buoy": "buoy: little to gain on persistence"}


def draw(results: Results, path: Path) -> None:
    """Draw the mean over the seeds, with their range."""
    tasks = list(next(iter(results.values())).drawn)
    figure = Figure(figsize=(5.2 * len(tasks), 4.2), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        _panel(axis, task, [each.drawn[task] for each in results.values()])
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)


def _panel(axis: Any, task: str, curves: list[dict[str, Any]]) -> None:
    at = np.array(curves[0]["horizons"]) * (1.0 if task == "lorenz96" else 0.5)
    for name, looks in LOOKS.items():
        if name in curves[0]["errors"]:
            errors = np.array([each["errors"][name] for each in curves])
            axis.plot(at, errors.mean(axis=0), markersize=4, **{"label": name, **looks})
            axis.fill_between(at, errors.min(axis=0), errors.max(axis=0), color=looks["color"], alpha=0.15, linewidth=0)
    axis.set_title(TITLES[task])
    axis.spines[["top", "right"]].set_visible(False)
    if task == "lorenz96":
        axis.set(xlabel="days ahead", xticks=at, ylabel="RMSE in standard deviations", ylim=(0, None))
    else:
        axis.set(xlabel="hours ahead", xticks=at[[0, *range(2, len(at))]], yscale="log")
