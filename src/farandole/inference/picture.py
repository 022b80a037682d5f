"""Calibration as a picture, drawn by matplotlib (``pip install 'farandole[plot]'``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.inference.calibration import Reliability, coverage, normal_interval
from farandole.largebatch.picture import new_figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = np.arange(0.05, 1.0, 0.05)


def draw_calibration(
    classes: Reliability | None = None, values: tuple[Any, Any, Any] | None = None, path: str | Path | None = None
) -> Figure:
    """Draw a reliability diagram of ``classes``, and beside it the coverage of intervals of ``values``.

        draw_calibration(reliability(found["mean"][:], labels), (targets, mean, variance), "calibration.png")

    ``values`` are targets, means and variances, of one shape. In both diagrams the diagonal is perfect calibration.
    """
    figure = new_figure(4.6 * ((classes is not None) + (values is not None)), 4.2)
    axes = list(figure.subplots(1, (classes is not None) + (values is not None), squeeze=False)[0])
    if classes is not None:
        _draw_classes(axes.pop(0), classes)
    if values is not None:
        _draw_values(axes.pop(0), *values)
    return written(figure, path)


def _draw_classes(axis: Any, found: Reliability) -> None:
    bins = len(found.samples)
    centres, is_filled = (np.arange(bins) + 0.5) / bins, found.samples > 0
    axis.bar(centres[is_filled], found.accuracy[is_filled], 0.92 / bins, color="tab:blue", label="share that is right")
    axis.plot(found.confidence[is_filled], found.accuracy[is_filled], "o", color="black", ms=4, label="mean confidence")
    for x, y, samples in zip(
        found.confidence[is_filled], found.accuracy[is_filled], found.samples[is_filled], strict=True
    ):
        axis.annotate(f"{samples}", (x, y), (0, 4), textcoords="offset points", ha="center", va="bottom", fontsize=7)
    title = f"{found.samples.sum()} samples, calibration error {found.error:.3f}"
    _finish(axis, "confidence", "accuracy", title)


def _draw_values(axis: Any, targets: Any, mean: Any, variance: Any) -> None:
    found = [coverage(targets, *normal_interval(mean, variance, level)) for level in LEVELS]
    axis.plot(LEVELS, found, "o-", color="tab:blue", ms=4, label="intervals")
    at_90 = coverage(targets, *normal_interval(mean, variance, 0.9))
    _finish(axis, "level of the interval", "share of values inside", f"{np.size(targets)} values, {at_90:.1%} in 90 %")


def _finish(axis: Any, x: str, y: str, title: str) -> None:
    axis.plot([0, 1], [0, 1], "--", color="tab:gray", lw=1, label="as promised")
    axis.set(xlabel=x, ylabel=y, title=title, xlim=(0, 1), ylim=(0, 1.09), aspect="equal")
    axis.title.set_fontsize(10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left")
