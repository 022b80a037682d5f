"""Schedules and advice as pictures, drawn by matplotlib (``pip install 'farandole[plot]'``)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from farandole.largebatch.advice import Advice
    from farandole.largebatch.schedule import Schedule

_STEPS = 1000


def draw_schedule(schedule: Schedule, path: str | Path | None) -> Figure:
    """Rate over epochs, and the batch where it changes."""
    figure = _figure()
    axis: Any = figure.subplots()
    position = schedule.begin(epoch_samples=max(1, round(_STEPS * 1e6 / schedule.epochs)))
    epochs, rates, batches = [], [], []
    while position.epoch < schedule.epochs:
        epochs.append(position.epoch)
        rates.append(schedule.rate(position))
        batches.append(schedule.batch(position))
        position = schedule.advance(position, samples=10**6, gain=10**6 / schedule.base_batch)
    (line,) = axis.plot(epochs, rates, color="tab:blue", label="learning rate")
    lines = [line]
    if min(batches) < max(batches):
        other = axis.twinx()
        (line,) = other.plot(epochs, batches, color="tab:orange", ls="--", label="global batch")
        other.set(ylabel="samples in a step", ylim=(0, 1.05 * max(batches)))
        lines.append(line)
    warm = schedule.begin(1).scale.end
    if warm:
        axis.axvspan(0, warm, color="tab:gray", alpha=0.15, lw=0)
        axis.text(warm, 0.02, " warm-up", transform=axis.get_xaxis_transform(), ha="left", va="bottom", fontsize=8)
    axis.set(xlabel="epoch", ylabel="learning rate", xlim=(0, schedule.epochs), ylim=(0, None))
    axis.set_title(f"{schedule.rule} scaling from a batch of {schedule.base_batch} to {schedule.global_batch}")
    axis.grid(alpha=0.3)
    axis.legend(handles=lines, loc="center right")
    return _written(figure, path)


def draw_advice(advice: Advice, path: str | Path | None) -> Figure:
    """Time to the end, with its bounds, and samples to the end, over the number of workers."""
    figure = _figure()
    left, right = figure.subplots(1, 2)
    workers = [p.workers for p in advice.prospects]
    unit, seconds = _unit(max(p.slowest_s for p in advice.prospects))
    slow, fast = ([getattr(p, name) / seconds for p in advice.prospects] for name in ("slowest_s", "fastest_s"))
    left.fill_between(workers, fast, slow, color="tab:blue", alpha=0.2, lw=0, label="noise scale at its bounds (95 %)")
    left.plot(workers, [p.seconds / seconds for p in advice.prospects], "o-", ms=3, color="tab:blue", label="predicted")
    left.set(ylabel=unit, title="time of the training", ylim=(0, None))
    right.plot(workers, [p.samples / 1e6 for p in advice.prospects], "o-", ms=3, color="tab:orange", label="predicted")
    right.set(ylabel="million samples", title="samples of the training", ylim=(0, None))
    for axis in (left, right):
        axis.axvline(advice.workers, color="tab:green", label=f"recommended: {advice.workers}")
        _mark_critical(axis, advice)
        axis.set(xlabel="workers", xlim=(0.5, workers[-1] + 0.5))
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return _written(figure, path)


def _mark_critical(axis: Any, advice: Advice) -> None:
    """Where the batch passes the lower bound of the critical one."""
    for before, after in pairwise(advice.prospects):
        if before.batch <= advice.estimate.low < after.batch:
            label, begin, end = "batch above the lower bound", before.workers + 0.5, len(advice.prospects) + 0.5
            axis.axvspan(begin, end, color="tab:red", alpha=0.08, lw=0, label=label)


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 7200:
        return "hours", 3600.0
    return ("minutes", 60.0) if seconds >= 120 else ("seconds", 1.0)


def _figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plot() needs matplotlib, which is not installed here: pip install 'farandole[plot]'", name="matplotlib"
        ) from error
    return Figure(figsize=(8, 4), layout="constrained")


def _written(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    return figure
