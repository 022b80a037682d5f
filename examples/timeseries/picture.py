"""The figure of error against horizon: baselines, network, limit, and climatology as the end of all forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np

from examples.common.reproduce import Results
from examples.timeseries.experiment import NAMES, Curves

LOOKS: dict[str, dict[str, Any]] = {
    "persistence": {"color": "#888888", "marker": "s", "linestyle": "--"},
    "linear": {"color": "#d55e00", "marker": "^"},
    "LSTM": {"color": "#0072b2", "marker": "o", "linewidth": 2.2},
    "true model": {"color": "#009e73", "marker": "D", "linestyle": ":"},
    "climatology": {"color": "#000000", "linewidth": 1.0},
}
CALLED = {"linear": "linear autoregression", "true model": "true model, observed state", "LSTM": "LSTM (own)"}
UNITS = {"lorenz96": ("days ahead", 1.0), "buoy": ("hours ahead", 0.5)}


def draw(results: Results, path: Path) -> None:
    """Draw the mean over the seeds, with their range."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(next(iter(results.values())).drawn)
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.2 * len(tasks), 4.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        _panel(axis, task, [msgspec.convert(each.drawn[task], Curves) for each in results.values()])
    axes[0][0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axis: Any, task: str, curves: list[Curves]) -> None:
    unit, step = UNITS[task]
    at = step * np.array(curves[0].horizons)
    for name in curves[0].errors:
        errors = np.array([each.errors[name] for each in curves])
        looks = LOOKS[name]
        axis.plot(at, errors.mean(axis=0), label=CALLED.get(name, name), markersize=4, **looks)
        axis.fill_between(at, errors.min(axis=0), errors.max(axis=0), color=looks["color"], alpha=0.15, linewidth=0)
    axis.set_xlabel(unit)
    axis.set_xticks(at if task == "lorenz96" else at[[0, *range(2, len(at))]])
    axis.set_title(
        NAMES[task] + (": a network earns its keep" if task == "lorenz96" else ": little to gain on persistence")
    )
    axis.spines[["top", "right"]].set_visible(False)
    if task == "lorenz96":
        axis.set_ylabel("RMSE in standard deviations")
        axis.set_ylim(0, None)
    else:
        axis.set_yscale("log")
