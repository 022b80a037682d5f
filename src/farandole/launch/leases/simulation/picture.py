"""Simulated runs as a picture, drawn by matplotlib (``pip install 'farandole[plot]'``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.largebatch.picture import new_figure, written
from farandole.launch.leases.simulation.report import PlanReport
from farandole.launch.leases.simulation.simulate import RunPoint, SimulatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOUR_S = 3600.0
LEASES, STATIC, NOISE = "tab:blue", "tab:gray", "tab:red"


def draw_plan(report: PlanReport, path: str | Path | None) -> Figure:
    """Draw nodes and batch over time, the waits in the queue, and node-hours over the time of the training."""
    figure = new_figure(10, 7)
    axes = figure.subplots(2, 2)
    (nodes, batch), (waits, costs) = axes
    for axis in (nodes, batch):
        axis.sharex(waits)
    _draw_nodes(nodes, report)
    _draw_batch(batch, report.run)
    _draw_waits(waits, report.run)
    _draw_costs(costs, report)
    for row in axes:
        for axis in row:
            axis.grid(alpha=0.3)
    return written(figure, path)


def _steps(axis: Any, points: Sequence[RunPoint], field: str, until_s: float, **style: Any) -> None:
    times = [point.at_s / HOUR_S for point in points] + [until_s / HOUR_S]
    values = [getattr(point, field) for point in points]
    axis.step(times, [*values, values[-1]], where="post", **style)


def _until_s(run: SimulatedRun, report: PlanReport) -> float:
    return run.seconds if run.seconds is not None else report.trace.end_s - report.trace.begin_s


def _draw_nodes(axis: Any, report: PlanReport) -> None:
    run = report.run
    _steps(axis, run.points, "nodes", _until_s(run, report), color=LEASES, lw=1.2, label="leases")
    done = [static for static in report.static if static.seconds is not None]
    if done:
        fastest = min(done, key=lambda static: static.seconds or 0.0)
        label = f"static, {fastest.name} workers: the fastest"
        _steps(axis, fastest.points, "nodes", _until_s(fastest, report), color=STATIC, lw=1.0, ls="--", label=label)
    axis.set(ylabel="nodes", title="nodes of the training", ylim=(0, None))
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=8)


def _draw_batch(axis: Any, run: SimulatedRun) -> None:
    advised = [point for point in run.points if point.noise]
    if advised:
        times = [point.at_s / HOUR_S for point in advised]
        label = "lower bound of the noise scale"
        axis.plot(times, [point.noise for point in advised], ".", ms=2, color=NOISE, alpha=0.5, label=label)
    # Without workers no point is drawn: a logarithmic axis has no batch of 0.
    points = [point if point.batch else point._replace(batch=math.nan) for point in run.points]
    _steps(axis, points, "batch", run.points[-1].at_s, color=LEASES, lw=1.2, label="global batch")
    axis.set(ylabel="samples in a step", title="batch", yscale="log")
    axis.legend(fontsize=8)


def _draw_waits(axis: Any, run: SimulatedRun) -> None:
    axis.plot(
        [at_s / HOUR_S for at_s in run.starts_s], [wait_s / 60 for wait_s in run.waits_s], "o", ms=3, color=LEASES
    )
    axis.set(xlabel="hours", ylabel="minutes", title=f"waits of {len(run.waits_s)} leases in the queue")
    axis.set_ylim(0, max([1.0, *(wait_s / 60 * 1.1 for wait_s in run.waits_s)]))
    axis.set_xlim(0, None)


def _draw_costs(axis: Any, report: PlanReport) -> None:
    """Draw time over node-hours of the completed runs; or the progress of all runs, if too few are complete."""
    ended = report.run.seconds is not None and any(run.seconds is not None for run in report.static)
    static = [run for run in report.static if run.seconds is not None or not ended]
    heights = [_height(run, ended=ended) for run in static]
    axis.plot([run.node_hours for run in static], heights, "o--", color=STATIC, lw=0.8, label="static sizes")
    for run, height in zip(static, heights, strict=True):
        axis.annotate(run.name, (run.node_hours, height), textcoords="offset points", xytext=(5, 5), fontsize=8)
    axis.plot(report.run.node_hours, _height(report.run, ended=ended), "D", color=LEASES, label="leases")
    label, title = ("hours", "time until the end") if ended else ("percent", "what is done at the end of the trace")
    axis.set(xlabel="node-hours", ylabel=label, title=title, xlim=(0, None), ylim=(0, None))
    axis.legend(fontsize=8)


def _height(run: SimulatedRun, *, ended: bool) -> float:
    return (run.seconds or 0.0) / HOUR_S if ended else 100 * run.share
