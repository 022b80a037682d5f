"""Pictures of an outlook, and of the published tables beside the headlines, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farandole.largebatch.picture import new_figure, written
from farandole.predict.checking import Check, last, line
from farandole.predict.headlines import Headline
from farandole.predict.model import COMMUNICATION, INPUT, Model
from farandole.predict.outlook import Outlook

LAYERS = {
    "compute": ("compute",),
    "communication": COMMUNICATION,
    "slowest rank": ("stragglers",),
    "control plane": ("control",),
    "input": INPUT,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")


def draw(found: Outlook, model: Model, path: str | Path) -> None:
    """Draw steps with their interval, parts and oracles, and efficiency, or the training if it is known."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    ranks = [row.ranks for row in found.rows]
    total = [row.step.middle / sum(row.parts.values()) for row in found.rows]
    layers = [
        [sum(row.parts[name] for name in names) * factor for row, factor in zip(found.rows, total, strict=True)]
        for names in LAYERS.values()
    ]
    left.stackplot(ranks, *layers, labels=LAYERS, colors=COLOURS, alpha=0.45)
    _band(left, ranks, [row.step for row in found.rows], "black", "90 %")
    left.plot(
        [o.ranks for o in model.steps], [o.seconds for o in model.steps], "o", color="black", label="measured", ms=4
    )
    for oracle, style in ((last, ":"), (line, "--")):
        left.plot(
            ranks, [oracle(model.steps, p) for p in ranks], style, color="grey", label=f"oracle: {oracle.__name__}"
        )
    left.set(title="a step", ylabel="seconds", ylim=(0, None))
    if all(row.training for row in found.rows):
        bands = [row.training for row in found.rows if row.training]
        _band(right, ranks, [type(b)(*(each / 3600 for each in b)) for b in bands], COLOURS[0], "time")
        right.set(title="training", ylabel="hours", yscale="log")
        price = right.twinx()
        price.plot(ranks, [row.node_hours for row in found.rows], "--", color=COLOURS[1], label="node-hours (right)")
        price.set(yscale="log")
        right.plot([], [], "--", color=COLOURS[1], label="node-hours (right)")
    else:
        _band(right, ranks, [row.efficiency for row in found.rows], COLOURS[0], "of that on the fewest ranks")
        right.set(title="efficiency", ylim=(0, 1.1))
    for axis, place in ((left, "upper left"), (right, "upper center")):
        axis.axvspan(ranks[0], model.most, color="grey", alpha=0.08, lw=0, label="measured up to here")
        _finish(axis, place)
    written(figure, path)


def draw_published(checks: Sequence[tuple[str, Model, Check]], beside: Sequence[Headline], path: str | Path) -> None:
    """Draw each table with the predictions for held-back points, extrapolated to the headlines."""
    figure = new_figure(10, 7)
    axes: Any = figure.subplots(2, 2)
    most = max(each.ranks for each in beside)
    for axis, (name, model, check) in zip(axes.flat, checks, strict=True):
        base, per_host = model.steps[0].seconds, max(o.ranks / o.hosts for o in model.steps)
        ranks = [*(p for p in (model.steps[0].ranks * 2**i for i in range(16)) if p < most), most]
        bands = [model.quantiles(p, max(1, p / per_host)) for p in ranks]
        _band(axis, ranks, [type(b)(*(base / each for each in b)) for b in bands], COLOURS[0], "said, 90 %")
        fitted = [(o.ranks, base / o.seconds) for o in model.steps]
        held = [(p.ranks, base / p.seconds) for p in check.points]
        axis.plot(*zip(*fitted, strict=True), "o", color="black", ms=4, label=f"fitted, up to {check.most:.0f}")
        axis.plot(*zip(*held, strict=True), "o", mfc="white", color="black", ms=5, label="held back")
        for i, mark, label in ((2, "*", "published elsewhere"), (3, "x", "cost model says")):
            axis.plot([h.ranks for h in beside], [h[i] for h in beside], mark, color=COLOURS[1], label=label)
        axis.set(title=name, ylabel="efficiency", ylim=(0, 1.1))
        _finish(axis, "lower left")
    written(figure, path)


def _band(axis: Any, ranks: Sequence[float], values: Sequence[Any], colour: str, label: str) -> None:
    low, middle, high = zip(*values, strict=True)
    axis.plot(ranks, middle, color=colour, linewidth=1.5)
    axis.fill_between(ranks, low, high, color=colour, alpha=0.2, linewidth=0, label=label)


def _finish(axis: Any, place: str) -> None:
    axis.set(xlabel="ranks", xscale="log")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc=place)
