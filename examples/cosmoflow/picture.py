"""Pictures of CosmoFlow: what the network says of unseen volumes against the truth, and its error against volumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from examples.common.reproduce import Results
from examples.common.volumes import RANGES

NAMES = {"omega_m": "$\\Omega_m$", "sigma_8": "$\\sigma_8$", "n_s": "$n_s$"}


def draw(results: Results, path: Path) -> None:
    """Three panels, with the volumes of the first seed; bars are the 68 % of the errors on volumes for validation."""
    first = next(iter(results.values()))
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    axes = figure.subplots(1, 3)
    for number, (axis, name) in enumerate(zip(axes, RANGES, strict=True)):
        _panel(axis, first.drawn, number, name)
        network, ridge = (
            np.mean([each.figures[f"{who} {name}"] for each in results.values()]) for who in ("network", "ridge")
        )
        low, high = RANGES[name]
        unit = (high - low) / 2
        axis.set_title(f"{NAMES[name]}: error {network * unit:.4f}, by ridge {ridge * unit:.4f}")
    figure.savefig(path, dpi=110)


def _panel(axis: Any, drawn: Any, number: int, name: str) -> None:
    low, high = RANGES[name]
    middle, unit = (low + high) / 2, (high - low) / 2
    truth, said = (middle + unit * np.array(drawn[key])[:, number] for key in ("truth", "network"))
    half = unit * drawn["half"][number]
    axis.errorbar(truth, said, half, fmt="o", markersize=3, color="#1f4e79", ecolor="#a9c4de", elinewidth=0.8)
    axis.plot([low, high], [low, high], color="#c0504d", linewidth=1)
    axis.set(xlabel=f"{NAMES[name]} of the volume", ylabel="predicted", xlim=(low, high))


def draw_curve(points: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Error of each label against the number of volumes, of the network and of ridge."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axis, name in zip(figure.subplots(1, 3), RANGES, strict=True):
        for who, colour in (("ridge", "#c0504d"), ("network", "#1f4e79")):
            axis.semilogx([*points], [each[f"{who} {name}"] for each in points.values()], "o-", color=colour, label=who)
        axis.set(title=NAMES[name], xlabel="volumes to train on", xticks=[*points], xticklabels=[*points])
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
        axis.minorticks_off()
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)
