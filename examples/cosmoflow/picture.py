"""The picture of CosmoFlow: what the network says of volumes that it has not seen, against the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from examples.common.reproduce import Results
from examples.common.volumes import RANGES

NAMES = {"omega_m": "$\\Omega_m$", "sigma_8": "$\\sigma_8$", "n_s": "$n_s$"}


def draw(results: Results, path: Path) -> None:
    """Three panels, with the volumes of the first seed; bars are the 68 % of the errors on volumes for validation."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    first = next(iter(results.values()))
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
    for number, (axis, name) in enumerate(zip(axes, RANGES, strict=True)):
        _panel(axis, first.drawn, number, name)
        network, ridge = (
            np.mean([each.figures[f"{who} {name}"] for each in results.values()]) for who in ("network", "ridge")
        )
        low, high = RANGES[name]
        unit = (high - low) / 2
        axis.set_title(f"{NAMES[name]}: error {network * unit:.4f}, by ridge {ridge * unit:.4f}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, drawn: Any, number: int, name: str) -> None:
    low, high = RANGES[name]
    middle, unit = (low + high) / 2, (high - low) / 2
    truth, said = (middle + unit * np.array(drawn[key])[:, number] for key in ("truth", "network"))
    half = unit * drawn["half"][number]
    axis.errorbar(truth, said, half, fmt="o", markersize=3, color="#1f4e79", ecolor="#a9c4de", elinewidth=0.8)
    axis.plot([low, high], [low, high], color="#c0504d", linewidth=1)
    axis.set(xlabel=f"{NAMES[name]} of the volume", ylabel="predicted", xlim=(low, high))
